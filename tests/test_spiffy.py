"""Spiffy's graphs: counted along trajectories, chosen best first, filled with tokens in every pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotkit.errors import CheckpointError, ConfigError, MismatchError
from spotkit.logprobs import Sampling
from spotkit.rules import Static
from spotkit.settings import DecodeConfig
from spotkit.strategies.spiffy import TOKENS, Formula, Graph, Ranks, Spiffy, instantiate, save, spiffy
from spotkit.strategies.spiffy_calibrator import Counts, SpiffyCalibrator, formulas_of, select
from spotkit.testing.cases import Case, cases, check_exact
from spotkit.testing.targets import TableTarget
from spotkit.training.collect import Recipe
from spotkit.types import State, TargetSpec

SPEC = TargetSpec("t", 9, 2, eos_ids=(), pad_id=0, block_length=5)
A, B, C, A1 = (0, 0), (1, 0), (2, 0), (0, 1)


def chain(*pairs: tuple[int, int]) -> Formula:
    return tuple((pair,) for pair in pairs)


def case_of(temperature: float, seed: int = 3) -> Case:
    config = DecodeConfig(max_new_tokens=20, sampling=Sampling(temperature))
    target = TableTarget(SPEC, seed=seed, smooth=0.93)
    return Case(target, ((0, 1, 3, 4, 5), (6, 7, 1)), (0, 1), Static(), config, budget=12)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_graph_calibrated_on_a_target_serves_it(temperature: float) -> None:
    case = case_of(temperature)
    prompts = [[0, 1, 3], [3, 4, 3], [6, 1, 5]]
    recipe = Recipe(case.rule, 1, attrs.evolve(case.config, seed=9))
    graph = SpiffyCalibrator(size=30, depth=5).calibrate(case.target, prompts, recipe=recipe)
    plain = case.plain()
    result = check_exact(case, Spiffy({5: graph}), plain)
    assert result.stats.accepted > 0
    assert result.stats.drafted > result.stats.accepted
    few = check_exact(case, Spiffy({5: graph}, pruned=2), plain)
    assert few.stats.drafted <= 2 * few.stats.passes
    assert result.stats.passes <= few.stats.passes < plain.stats.passes


def example(time: list[int], rank: list[int], final: list[int], tokens: list[list[int]]) -> dict[str, torch.Tensor]:
    return {
        "time": torch.tensor(time), "rank": torch.tensor(rank), "final": torch.tensor(final),
        "tokens": torch.tensor([tokens]),
    }  # fmt: skip


def test_formulas_of_a_trajectory() -> None:
    """Positions 1, 3, 0 commit one after the other; position 2 was committed before."""
    told = example([2, 0, 30_000, 1], [1, 0, -1, 2], [5, 6, 0, 8], [[5, 1], [6, 1], [0, 0], [7, 8]])
    assert list(formulas_of(told, 9)) == [chain(A), chain(A, (2, 1)), chain(A, (2, 1), B)]
    assert list(formulas_of(told, 2)) == [chain(A), chain(A, (2, 1))]


def test_a_trajectory_ends_where_ranks_cannot_tell() -> None:
    tokens = [[5, 1], [6, 1], [7, 0]]
    assert list(formulas_of(example([0, 1, 2], [0, 1, 2], [5, 3, 7], tokens), 9)) == [chain(A)]  # an unranked token
    assert list(formulas_of(example([0, 2, 1], [0, 1, -1], [5, 6, 7], tokens), 9)) == [chain(A)]  # a later block
    assert list(formulas_of(example([1, 2, 3], [0, 1, 2], [5, 6, 7], tokens), 9)) == []  # nothing at the next step
    both = list(formulas_of(example([0, 0, 1], [1, 0, 2], [5, 6, 7], tokens), 9))
    assert both == [((A, B),), ((A, B), (C,))]


def counted(**ways: int) -> Counts:
    names = {"a": A, "b": B, "c": C, "x": A1}
    counts = Counts()
    for way, times in ways.items():
        for _ in range(times):
            counts.add(chain(*(names[letter] for letter in way)))
    return counts


def test_the_graph_grows_from_what_is_chosen_by_accumulated_counts() -> None:
    """Worth: a 10, b 4, x 1; ab and ba are one state, seen 6 times, worth 6 + 10 + 4; ac 1 + 10."""
    counts = counted(a=10, b=4, x=1, ab=4, ba=2, ac=1, abc=3)
    graph = select(counts, 9)
    assert graph.formulas == (chain(A), chain(A, B), chain(A, C), chain(A, B, C), chain(B), chain(A1))
    assert graph.counts == (10, 6, 1, 3, 4, 1)
    assert select(counts, 2).formulas == (chain(A), chain(A, B))


@given(ways=st.lists(st.permutations([A, B, C]).map(lambda p: chain(*p)), max_size=12), size=st.integers(1, 20))
def test_every_formula_follows_from_one_before_it(ways: list[Formula], size: int) -> None:
    counts = Counts()
    for way in ways:
        for end in range(1, len(way) + 1):
            counts.add(way[:end])
    graph = select(counts, size)
    sets = [frozenset(pair for step in formula for pair in step) for formula in graph.formulas]
    assert len(set(sets)) == len(sets) == min(size, len(counts.seen))
    for place, node in enumerate(sets):
        assert len(node) == 1 or any(before < node and len(before) == len(node) - 1 for before in sets[:place])


@given(data=st.data())
def test_a_formula_stands_for_its_state(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 6))
    committed = torch.tensor([data.draw(st.lists(st.booleans(), min_size=width, max_size=width))])
    start, limit = torch.tensor([0]), torch.tensor([width])
    canvas = torch.where(committed, 7, 2)
    state = State(canvas, committed, torch.tensor([int(committed.sum())]), start, limit, start, width)
    count = int((~committed).sum())
    order = data.draw(st.permutations((~committed)[0].nonzero().squeeze(-1).tolist()))
    rest = [p for p in range(width) if p not in order]
    tokens = torch.arange(width * TOKENS).view(1, 1, width, TOKENS)
    ranks = Ranks(torch.tensor([[*order, *rest]]), torch.tensor([count]), tokens, -1.0 - tokens.float())
    pair = st.tuples(st.integers(0, width - 1), st.integers(0, TOKENS - 1))
    pairs = data.draw(st.lists(pair, min_size=1, max_size=width, unique_by=lambda p: p[0]))
    draft, local = instantiate(state, [chain(*pairs)], ranks)
    assert bool(draft.valid) == (max(i for i, _ in pairs) < count)
    if not bool(draft.valid):
        return
    expected = canvas[0].tolist()
    for i, j in pairs:
        expected[order[i]] = order[i] * TOKENS + j
    assert draft.states.canvas[0, 0].tolist() == expected
    assert int(draft.states.committed.sum()) == int(committed.sum()) + len(pairs)
    full = len(pairs) == count
    assert int(draft.states.step) == (0 if full else int(state.step) + len(pairs))
    mean = sum(-1.0 - (order[i] * TOKENS + j) for i, j in pairs) / len(pairs)
    assert float(local) == pytest.approx(mean)


@given(case=cases(), size=st.integers(1, 40))
def test_it_keeps_text_and_log_whatever_the_graph_says(case: Case, size: int) -> None:
    formulas = [chain(*((i, (i + n) % 3) for i in range(n % 4, n % 4 + 1 + n % 3))) for n in range(size)]
    graph = Graph(tuple(formulas), (1,) * size)
    drafter = Spiffy({case.target.spec.block_length: graph}, pruned=None if size % 2 else 3)
    check_exact(case, drafter, case.plain())


def test_the_shipped_graph_and_its_refusals(tmp_path: Path) -> None:
    made = spiffy()
    assert set(made.graphs) == {4, 8, 16, 32}
    assert made.graphs[16].formulas[0] == chain(A)
    save(tmp_path, made, about={"prompts": 1})
    assert spiffy(drafter=tmp_path, pruned=3) == attrs.evolve(made, pruned=3)
    with pytest.raises(MismatchError, match="block_length=5: this graph serves block lengths 4, 8, 16, 32"):
        made.init(SPEC, batch_size=1)
    with pytest.raises(MismatchError, match="fingerprint=other: this graph was made for target"):
        made.init(attrs.evolve(SPEC, block_length=4, fingerprint="other"), batch_size=1)
    with pytest.raises(ConfigError, match="drafter=None: Spiffy needs a graph"):
        spiffy(target=TableTarget(SPEC))
    with pytest.raises(ConfigError, match="pruned=0"):
        spiffy(pruned=0)
    with pytest.raises(ConfigError, match="drafter=5"):
        spiffy(drafter=5)


GOOD: dict[str, Any] = {
    "kind": "spiffy", "format": 1, "target": "", "graphs": {"4": {"formulas": [[[[0, 0]]]], "counts": [1]}},
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "spot"}, {"format": 2}, {"graphs": 5}, {"graphs": {"four": GOOD["graphs"]["4"]}},
        {"graphs": {"4": {"formulas": [[[[0, -1]]]], "counts": [1]}}},
        {"graphs": {"4": {"formulas": [[[[0, 0.5]]]], "counts": [1]}}},
        {"graphs": {"4": {"formulas": [[[[0]]]], "counts": [1]}}},
        {"graphs": {"4": {"formulas": [[]], "counts": [1]}}}, {"graphs": {"4": {"formulas": [[[]]], "counts": [1]}}},
        {"graphs": {"4": {"formulas": [[[[0, 0]]]], "counts": ["one"]}}}, {"graphs": {"4": 5}},
    ],
)  # fmt: skip
def test_damaged_graphs(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "spiffy.json").write_text(json.dumps(GOOD))
    assert spiffy(drafter=tmp_path).graphs[4] == Graph((chain(A),), (1,))
    (tmp_path / "spiffy.json").write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(CheckpointError, match=r"spiffy\.json"):
        spiffy(drafter=tmp_path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="spotkit calibrate"):
        spiffy(drafter=tmp_path)
    (tmp_path / "spiffy.json").write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match="spotkit calibrate"):
        spiffy(drafter=tmp_path)
