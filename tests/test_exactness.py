"""The property the project stands on: no drafter changes the text, nor the order in which it is committed."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotkit.logprobs import Sampling
from spotkit.protocols import Drafter
from spotkit.results import Result
from spotkit.rules import Sequential, Static, Threshold
from spotkit.settings import DecodeConfig
from spotkit.strategies.confidence_tree import ConfidenceTree
from spotkit.strategies.freedave import FreeDave
from spotkit.strategies.order_model import OrderConfig, OrderModel
from spotkit.strategies.self_speculative import SelfSpeculative
from spotkit.strategies.spiffy import Graph, Spiffy
from spotkit.strategies.spot import Spot
from spotkit.testing import drafters as toys
from spotkit.testing.cases import Case, cases, check_exact
from spotkit.testing.targets import TableTarget
from spotkit.types import TargetSpec

Make = Callable[[Case, Result], Drafter]


def clairvoyant(case: Case, plain: Result) -> toys.Clairvoyant:
    return toys.Clairvoyant.of(plain, case.row_ids)


def altered(change: Callable) -> Make:
    return lambda case, plain: toys.Altered(clairvoyant(case, plain), change)


@functools.cache
def random_model(block_length: int, vocab_size: int) -> OrderModel:
    """An order model whose weights mean nothing."""
    config = OrderConfig((block_length,), (2,), vocab_size, width=16, layers=1, heads=2, pair_rank=2)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(block_length)
        model = OrderModel(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.5)
    return model.eval()


def untrained_spot(case: Case, plain: Result) -> Spot:
    return Spot(random_model(case.target.spec.block_length, case.target.spec.vocab_size))


# Formulas of one to three positions, the most confident first.
CHAINS = tuple(tuple(((i, 0),) for i in range(n)) for n in (1, 2, 3))
GRAPH = Graph((*CHAINS, (((0, 1),),), (((1, 0),),)), (5, 4, 3, 2, 1))

# One line per drafter: what it proposes must never matter.
DRAFTERS: dict[str, Make] = {
    "freedave": lambda case, plain: FreeDave(),
    "freedave_2": lambda case, plain: FreeDave(depth=2),
    "self_speculative": lambda case, plain: SelfSpeculative(),
    "spiffy": lambda case, plain: Spiffy({case.target.spec.block_length: GRAPH}),
    "confidence_tree": lambda case, plain: ConfidenceTree(),
    "spot": untrained_spot,
    "clairvoyant": clairvoyant,
    "oracle": lambda case, plain: toys.Oracle.of(plain, case.row_ids),
    "random_first": lambda case, plain: toys.Joined((toys.RandomStates(), clairvoyant(case, plain), FreeDave())),
    "wrong_tokens": altered(toys.wrong_tokens),
    "repeated": altered(toys.repeated),
    "steps_ahead": altered(toys.shifted_steps(3)),
    "steps_behind": altered(toys.shifted_steps(-2)),
    "steps_huge": altered(toys.shifted_steps(2**62)),
    "rewritten": altered(toys.rewritten),
    "beyond_end": altered(toys.beyond_end),
    "elsewhere": altered(toys.elsewhere),
    "mask": lambda case, plain: toys.Forced("mask"),
    "eos": lambda case, plain: toys.Forced("eos"),
    "outside": lambda case, plain: toys.Forced("outside"),
    "random_tokens": lambda case, plain: toys.Forced("random", seed=len(plain.rows[0].log)),
    "hundreds": lambda case, plain: toys.RandomStates(count=300),
    "none": lambda case, plain: toys.Nothing("none"),
    "empty": lambda case, plain: toys.Nothing("empty"),
    "invalid": lambda case, plain: toys.Nothing("invalid"),
}

# Drafters that must be seen to have candidates accepted, and rejected, on the fixed cases.
ACCEPTED = {
    "freedave", "freedave_2", "self_speculative", "spiffy", "confidence_tree", "spot", "clairvoyant", "random_first",
    "oracle", "repeated", "steps_ahead", "steps_huge", "elsewhere",
}  # fmt: skip
REJECTED = {
    "freedave", "self_speculative", "confidence_tree", "spot", "random_first", "wrong_tokens", "steps_ahead",
    "steps_behind", "steps_huge", "eos", "random_tokens", "hundreds",
}  # fmt: skip
HOPELESS = {"wrong_tokens", "mask", "outside", "none", "empty", "invalid"}


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    """Counts what the property has seen, and fails at the end if that is too little to prove anything."""
    seen: Counter[str] = Counter()
    yield seen
    assert seen["accepted"] > seen["examples"], seen
    assert seen["rejected"] > 2 * seen["examples"], seen
    assert seen["rows batched"] > seen["examples"] / 3, seen
    assert seen["passes saved"] > seen["examples"], seen


@settings(max_examples=4 * settings.default.max_examples)
@given(case=cases(), good=st.sampled_from(sorted(ACCEPTED & REJECTED)), other=st.sampled_from(sorted(DRAFTERS)))
def test_no_drafter_changes_tokens_or_log(case: Case, good: str, other: str, tally: Counter[str]) -> None:
    plain = case.plain()
    for row in range(len(case.prompts)):
        alone = case.plain(rows=[row])
        assert alone.rows[0].tokens == plain.rows[row].tokens
        assert alone.rows[0].log == plain.rows[row].log
    tally["examples"] += 1
    tally["rows batched"] += len(case.prompts) - 1
    for name in (good, other):
        stats = check_exact(case, DRAFTERS[name](case, plain), plain, name=name).stats
        tally["accepted"] += stats.accepted
        tally["rejected"] += stats.drafted - stats.accepted
        tally["passes saved"] += plain.stats.passes - stats.passes


@functools.cache
def fixed_cases() -> list[tuple[Case, Result]]:
    """Decodes in which a good drafter has something to go by, with their plain results."""
    rules = (Static(), Static(steps_per_block=3), Threshold(threshold=0.5), Threshold(fallback="best"), Sequential())
    made = []
    for number, (rule, temperature) in enumerate(itertools.product(rules, (0.0, 1.0))):
        spec = TargetSpec(
            name="table", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=4,
            block_grid="absolute" if number % 4 == 3 else "prompt",
            attention="full" if number > 7 else "block_causal",
        )  # fmt: skip
        case = Case(
            target=TableTarget(spec, seed=number, levels=8, scale=8.0, smooth=0.8),
            prompts=((1, 0, 3), (5,)),
            row_ids=(7, 11),
            rule=rule,
            config=DecodeConfig(max_new_tokens=7, sampling=Sampling(temperature=temperature), seed=number),
            budget=8,
            window=1 + number % 3,
        )
        made.append((case, case.plain()))
    return made


@pytest.mark.parametrize("name", DRAFTERS)
def test_each_drafter_on_fixed_cases(name: str) -> None:
    accepted = rejected = 0
    for case, plain in fixed_cases():
        stats = check_exact(case, DRAFTERS[name](case, plain), plain, name=name).stats
        accepted += stats.accepted
        rejected += stats.drafted - stats.accepted
    assert accepted > 0 or name not in ACCEPTED
    assert rejected > 0 or name not in REJECTED
    assert accepted == 0 or name not in HOPELESS
