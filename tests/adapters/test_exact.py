"""State equality over every family: no drafter changes an id or a commit, in any cache and layout."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotkit.loading import load
from spotkit.logprobs import Sampling
from spotkit.presets import presets_of
from spotkit.protocols import Drafter, Target
from spotkit.results import Result
from spotkit.rules import Ordered, Sequential, Static, Threshold
from spotkit.settings import DecodeConfig
from spotkit.strategies.confidence_tree import ConfidenceTree
from spotkit.strategies.freedave import FreeDave
from spotkit.strategies.order_model import OrderConfig, OrderModel
from spotkit.strategies.spot import Spot
from spotkit.testing import drafters as toys
from spotkit.testing.cases import Case, check_exact

DATA = Path(__file__).parent.parent / "data" / "conformance"
CACHES = {
    "sdar": ("exact",),
    "trado": ("exact",),
    "llada": ("none", "prefix", "dual"),
    "llada_gqa_tied": ("none", "prefix", "dual"),
    "llada_moe": ("none", "prefix", "dual"),
    "llada2": ("exact",),
    "dream": ("none", "prefix", "dual"),
    "fast_dllm_v2": ("exact", "block"),
}
KINDS = [(name, cache) for name, caches in CACHES.items() for cache in caches]
MASKS = {
    "llada": 127, "llada_gqa_tied": 127, "llada_moe": 139, "llada2": 131, "dream": 129, "fast_dllm_v2": 123,
}  # fmt: skip
MOST = 118  # ids that every one of the checkpoints knows as text
RUNS = max(4, settings.default.max_examples // 25)  # 200 in the nightly suite


@functools.cache
def target_of(name: str, cache: str, layout: str, block_length: int, dtype: str = "float32") -> Target:
    return load(
        DATA / "checkpoints" / name,
        dtype=dtype,
        cache=cache,
        layout=layout,
        block_length=block_length,
        span=3 if cache == "block" else None,
        mask_id=MASKS.get(name),
    )


@functools.cache
def random_spot(block_length: int, vocab_size: int) -> Spot:
    """An order model whose weights mean nothing."""
    config = OrderConfig((block_length,), (3,), vocab_size, width=16, layers=1, heads=2, pair_rank=2)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(block_length)
        model = OrderModel(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.5)
    return Spot(model.eval())


def clairvoyant(case: Case, plain: Result) -> Drafter:
    return toys.Clairvoyant.of(plain, case.row_ids)


DRAFTERS: dict[str, Callable[[Case, Result], Drafter]] = {
    "freedave": lambda case, plain: FreeDave(),
    "confidence_tree": lambda case, plain: ConfidenceTree(),
    "spot": lambda case, plain: random_spot(case.target.spec.block_length, case.target.spec.vocab_size),
    "clairvoyant": clairvoyant,
    "mixed": lambda case, plain: toys.Joined((clairvoyant(case, plain), toys.RandomStates(), FreeDave())),
    "wrong_tokens": lambda case, plain: toys.Altered(clairvoyant(case, plain), toys.wrong_tokens),
    "repeated": lambda case, plain: toys.Altered(clairvoyant(case, plain), toys.repeated),
    "rewritten": lambda case, plain: toys.Altered(clairvoyant(case, plain), toys.rewritten),
    "mask": lambda case, plain: toys.Forced("mask"),
    "eos": lambda case, plain: toys.Forced("eos"),
    "outside": lambda case, plain: toys.Forced("outside"),
    "random": lambda case, plain: toys.Forced("random"),
    "empty": lambda case, plain: toys.Nothing("empty"),
}
RULES = (
    Static(),
    Static(2, confidence="filtered"),
    Static(3, measure="entropy", schedule="linear"),
    Static(measure="margin"),
    Sequential(2),
    Threshold(0.3, comparator=">=", fallback="best"),
    Threshold(0.2, fallback="quota", steps_per_block=2),
    Ordered(Threshold(0.3, fallback="best"), lead=True, span=2),
)


@st.composite
def cases(draw: st.DrawFn, name: str, cache: str) -> Case:
    length = draw(st.sampled_from([4, 3, 7]))
    target = target_of(name, cache, draw(st.sampled_from(["tree", "batch"])), length)
    rules = (*RULES, *(preset.rule for preset in presets_of(target).values()))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    seed = draw(st.integers(0, 10_000))
    numbers = torch.Generator().manual_seed(seed)
    prompts = tuple(tuple(torch.randint(MOST, (n,), generator=numbers).tolist()) for n in sizes)
    sampling = draw(st.sampled_from([Sampling(0.0), Sampling(1.0), Sampling(0.7, top_k=20, top_p=0.9)]))
    return Case(
        target=target,
        prompts=prompts,
        row_ids=tuple(range(seed, seed + len(sizes))),
        rule=draw(st.sampled_from(rules)),
        config=DecodeConfig(
            max_new_tokens=draw(st.integers(1, 14)), sampling=sampling, seed=seed, finish_block=draw(st.booleans())
        ),
        budget=draw(st.integers(2, 9)),
        window=draw(st.integers(1, 3)),
    )


@pytest.mark.parametrize(("name", "cache"), KINDS)
def test_no_drafter_changes_an_id_or_a_commit(name: str, cache: str) -> None:
    """In float32 but for decisions so close that its last digits decide; those must hold in float64.

    A model's logits differ by some 1e-5 with the number of states beside it, and about one decision in 100,000 is
    closer than that.
    """
    close: list[Case] = []

    @settings(max_examples=RUNS)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(cases(name, cache))
        names = data.draw(st.lists(st.sampled_from(sorted(DRAFTERS)), min_size=2, max_size=3, unique=True))
        try:
            check_case(case, names)
        except AssertionError:
            spec = case.target.spec
            exact = target_of(name, cache, case.target.layout, spec.block_length, "float64")
            check_case(attrs.evolve(case, target=exact), names)
            close.append(case)

    run()
    assert len(close) <= max(1, RUNS // 50)


def check_case(case: Case, names: list[str]) -> None:
    plain = case.plain()
    for row in range(len(case.prompts)):
        alone = case.plain([row]).rows[0]
        assert (alone.tokens, alone.log) == (plain.rows[row].tokens, plain.rows[row].log), f"row {row} in a batch"
    for drafter in names:
        check_exact(case, DRAFTERS[drafter](case, plain), plain, name=drafter)


@pytest.mark.parametrize("layout", ["tree", "batch"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("name", "cache"), [kind for kind in KINDS if kind[1] != "block"])  # test_block_cached.py
def test_drafts_are_accepted_and_rejected(name: str, cache: str, temperature: float, layout: str) -> None:
    """The property above would hold of a loop that takes no draft; here drafts are seen to be taken and refused."""
    case = Case(
        target=target_of(name, cache, layout, 4),
        prompts=((5, 6, 7, 8, 9), (11, 12)),
        row_ids=(0, 1),
        rule=Static(),
        config=DecodeConfig(max_new_tokens=12, sampling=Sampling(temperature), finish_block=True),
        budget=8,
        window=2,
    )
    plain = case.plain()
    knowing = check_exact(case, clairvoyant(case, plain), plain)
    assert knowing.stats.accepted > plain.stats.steps // 2
    assert knowing.stats.passes < plain.stats.passes
    for drafter in ("random", "wrong_tokens"):
        refused = check_exact(case, DRAFTERS[drafter](case, plain), plain)
        assert refused.stats.drafted > refused.stats.accepted
    guessed = [check_exact(case, DRAFTERS[d](case, plain), plain).stats for d in ("freedave", "spot")]
    assert all(stats.drafted > 0 for stats in guessed)


def test_every_checkpoint_with_official_cases_is_here() -> None:
    assert set(CACHES) == {path.name for path in (DATA / "checkpoints").iterdir()}
    assert all(json.loads((DATA / "checkpoints" / name / "config.json").read_text()) for name in CACHES)


def test_the_nightly_suite_runs_two_hundred() -> None:
    assert max(4, settings.get_profile("nightly").max_examples // 25) == 200
