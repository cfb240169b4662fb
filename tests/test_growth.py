"""Growth of draft trees against enumeration of every path."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spotkit.growth import Growth, Outlook, materialise
from spotkit.types import State

Added = frozenset[tuple[int, int]]
MASK = 99


def growth_of(
    seed: int,
    *,
    length: int,
    blocks: int,
    depth: int = 1,
    quota: Callable[[int, int], int] = lambda block, step: 1,
    by_confidence: bool = True,
    with_shifts: bool = False,
    settled: tuple[int, ...] = (),
    unknown: tuple[int, ...] = (),
) -> Growth:
    """Random scores; every token differs from step to step."""
    made_up = np.random.default_rng(seed)
    width = length * blocks
    free, known = np.ones(width, dtype=bool), np.ones(width, dtype=bool)
    free[list(settled)] = False
    known[list(unknown)] = False
    outlook = Outlook(
        tokens=made_up.integers(0, 50, (depth, width)),
        scores=made_up.normal(size=(depth, width)).astype(np.float32),
        held=made_up.uniform(0.2, 1.0, (depth, width)).astype(np.float32),
        known=known,
        shifts=made_up.normal(size=(width, width)).astype(np.float32) if with_shifts else None,
    )
    return Growth(outlook, quota, by_confidence, length, free)


def enumerate_paths(growth: Growth) -> tuple[dict[Added, float], dict[Added, set[Added]]]:
    """Probability of every state, summed over the orders that lead there, and each state's parents."""
    view, length = growth.outlook, growth.block_length
    mass: dict[Added, float] = {}
    parents: dict[Added, set[Added]] = {}

    def opened(added: Added) -> list[int]:
        """Open positions of the open block; empty if there is none, or nothing is known of it."""
        done = {p for p, _ in added}
        for begin in range(0, len(growth.open), length):
            left = [p for p in range(begin, begin + length) if growth.open[p] and p not in done]
            if left:
                whole = [p for p in range(begin, begin + length) if growth.open[p]]
                return left if all(view.known[p] for p in whole) else []
        return []

    def go(added: Added, share: float, step: int) -> None:
        left = opened(added)
        block = left[0] // length
        at = min(step, len(view.tokens) - 1)
        count = min(growth.quota(block, step), len(left))
        score = {p: float(view.scores[at, p]) for p in left}
        if view.shifts is not None:
            score = {p: s + sum(float(view.shifts[q, p]) for q, _ in added) for p, s in score.items()}
        ranked = sorted(left, key=lambda p: -score[p]) if growth.by_confidence else left
        sure, rest = ranked[: count - 1], ranked[count - 1 :]
        if not growth.by_confidence or count == len(left):
            options = [(ranked[:count], 1.0)]
        else:
            total = sum(math.exp(score[p]) for p in rest)
            options = [([*sure, p], math.exp(score[p]) / total) for p in rest]
        for places, chance in options:
            after = added | {(p, int(view.tokens[at, p])) for p in places}
            following = opened(after)
            if not following:
                continue
            chance *= math.prod(float(view.held[at, p]) for p in places)
            mass[after] = mass.get(after, 0.0) + share * chance
            parents.setdefault(after, set()).add(added)
            go(after, share * chance, step + 1 if following[0] // length == block else 0)

    if opened(frozenset()):
        go(frozenset(), 1.0, 0)
    return mass, parents


@settings(max_examples=2 * settings.default.max_examples)
@given(
    seed=st.integers(0, 10_000),
    length=st.sampled_from([4, 3, 2, 1]),
    blocks=st.integers(1, 2),
    depth=st.integers(1, 5),
    per_step=st.lists(st.sampled_from([2, 1, 3]), min_size=1, max_size=3),
    by_confidence=st.booleans(),
    with_shifts=st.booleans(),
    data=st.data(),
)
def test_states_have_the_probability_of_all_their_paths(
    seed: int,
    length: int,
    blocks: int,
    depth: int,
    per_step: list[int],
    by_confidence: bool,
    with_shifts: bool,
    data: st.DataObject,
) -> None:
    places = st.integers(0, length * blocks - 1)
    growth = growth_of(
        seed,
        length=length,
        blocks=blocks,
        depth=depth,
        quota=lambda block, step: per_step[min(step, len(per_step) - 1)],
        by_confidence=by_confidence,
        with_shifts=with_shifts,
        settled=tuple(data.draw(st.lists(places, max_size=length))),
        unknown=tuple(data.draw(st.lists(places, max_size=1))),
    )
    mass, parents = enumerate_paths(growth)
    assume(len(mass) < 2000)
    every = growth.grow(10_000)
    assert {node.added: node.mass for node in every} == pytest.approx(mass, rel=1e-4)
    assert len(every) == len({node.added for node in every})

    count = data.draw(st.integers(0, 12))
    some = growth.grow(count)
    assert len(some) == min(count, len(mass))
    seen: set[Added] = {frozenset()}
    for node in some:
        assert parents[node.added] & seen, "a state before all of its parents"
        assert node.mass <= mass[node.added] * (1 + 1e-4)
        seen.add(node.added)


@pytest.mark.parametrize("per_step", [(1,), (2,), (1, 2), (3, 1)])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("with_shifts", [False, True])
def test_every_quota_has_the_probability_of_its_paths(
    per_step: tuple[int, ...], depth: int, with_shifts: bool
) -> None:
    """Several positions a step: the surest ones, and one more drawn from the rest."""
    for length, blocks in ((4, 1), (5, 1), (3, 2)):
        growth = growth_of(
            length,
            length=length,
            blocks=blocks,
            depth=depth,
            quota=lambda block, step: per_step[min(step, len(per_step) - 1)],
            with_shifts=with_shifts,
        )
        mass, _ = enumerate_paths(growth)
        assert {node.added: node.mass for node in growth.grow(10_000)} == pytest.approx(mass, rel=1e-4)


@given(seed=st.integers(0, 10_000), count=st.integers(1, 20))
def test_the_likeliest_states_are_taken(seed: int, count: int) -> None:
    """Exactly so where no paths meet: here every step has tokens of its own."""
    growth = growth_of(seed, length=4, blocks=1, depth=4)
    mass, parents = enumerate_paths(growth)
    assume(all(len(before) == 1 for before in parents.values()))
    best = sorted(mass.values(), reverse=True)[:count]
    assert [node.mass for node in growth.grow(count)] == pytest.approx(best, rel=1e-4)


def test_orders_that_meet_are_one_state() -> None:
    growth = growth_of(1, length=3, blocks=1)
    added = [node.added for node in growth.grow(100)]
    assert sorted(len(a) for a in added) == [1, 1, 1, 2, 2, 2]


def test_no_more_than_eight_successors_of_a_state() -> None:
    growth = growth_of(1, length=12, blocks=1)
    growth.outlook.scores[:] = np.linspace(0.01, 0.0, 12)
    growth.outlook.held[:] = 1.0
    places = [sorted(p for p, _ in node.added) for node in growth.grow(10)]
    assert places[:8] == [[i] for i in range(8)]
    assert [len(p) for p in places[8:]] == [2, 2]


@pytest.mark.parametrize("settled", [(0, 1, 2), ()])
def test_nothing_grows_from_nothing(settled: tuple[int, ...]) -> None:
    unknown = () if settled else (1,)
    assert growth_of(1, length=3, blocks=1, settled=settled, unknown=unknown).grow(5) == []


def row_state(committed: list[list[bool]], steps: list[int]) -> State:
    done = torch.tensor(committed)
    return State(
        canvas=torch.where(done, 7, MASK),
        committed=done,
        step=torch.tensor(steps),
        start=torch.tensor([0, 4]),
        limit=torch.tensor([4, 8]),
        row=torch.tensor([0, 1]),
        block_length=2,
    )


def test_a_draft_holds_the_states_that_were_grown() -> None:
    """Step counts go on from the current state's in its own block, and start anew in the next one."""
    state = row_state([[True, False, False, False], [False] * 4], steps=[1, 0])
    rows = [
        growth_of(1, length=2, blocks=2, depth=3, settled=(0,)).grow(3),
        growth_of(2, length=2, blocks=2, depth=3).grow(2),
    ]
    made = materialise(state, rows)
    assert made is not None
    assert made.valid.tolist() == [[True, True, True], [True, True, False]]
    for row, nodes in enumerate(rows):
        for k, node in enumerate(nodes):
            tokens = dict(node.added)
            old = state.committed[row].tolist()
            assert made.states.committed[row, k].tolist() == [old[i] or i in tokens for i in range(4)]
            assert made.states.canvas[row, k].tolist() == [tokens.get(i, 7 if old[i] else MASK) for i in range(4)]
            inside = sum(i < 2 for i in tokens)
            later = len(tokens) - inside
            left = 2 - sum(old[:2]) - inside
            assert made.states.step[row, k].item() == (int(state.step[row]) + inside if left else later)
    assert state.canvas[0].tolist() == [7, MASK, MASK, MASK]


def test_no_nodes_no_draft() -> None:
    assert materialise(row_state([[False] * 4] * 2, steps=[0, 0]), [[], []]) is None
