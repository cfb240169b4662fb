"""The property the project stands on: no drafter changes the text, nor the order in which it is committed."""

from __future__ import annotations

import functools
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
    config = OrderConfig((block_length,), vocab_size, width=16, layers=1, heads=2, pair_rank=2)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(block_length)
        model = OrderModel(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.5)
    return model.eval()


def untrained_spot(case: Case, plain: Result) -> Spot:
    return Spot(random_model(case.target.spec.block_length, case.target.spec.vocab_size))


# One line per drafter: what it proposes must never matter.
DRAFTERS: dict[str, Make] = {
    "freedave": lambda case, plain: FreeDave(),
    "freedave_2": lambda case, plain: FreeDave(depth=2),
    "confidence_tree": lambda case, plain: ConfidenceTree(),
    "spot": untrained_spot,
    "clairvoyant": clairvoyant,
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
    "freedave", "freedave_2", "confidence_tree", "spot", "clairvoyant", "random_first", "repeated", "steps_ahead",
    "steps_huge", "elsewhere",
}  # fmt: skip
REJECTED = {
    "freedave", "confidence_tree", "spot", "random_first", "wrong_tokens", "steps_ahead", "steps_behind", "steps_huge",
    "eos", "random_tokens", "hundreds",
}  # fmt: skip
HOPELESS = {"wrong_tokens", "mask", "outside", "none", "empty", "invalid"}


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    """Counts what the property has seen, and fails at the end if that is too little to prove anything."""
    seen: Counter[str] = Counter()
    yield seen
    assert seen["accepted"] > 4 * seen["examples"] > 0, seen
    assert seen["rejected"] > 10 * seen["examples"], seen
    assert seen["rows batched"] > seen["examples"] / 4, seen
    assert seen["passes saved"] > seen["examples"], seen


@settings(max_examples=4 * settings.default.max_examples)
@given(case=cases(), names=st.lists(st.sampled_from(sorted(DRAFTERS)), min_size=1, max_size=3, unique=True))
def test_no_drafter_changes_tokens_or_log(case: Case, names: list[str], tally: Counter[str]) -> None:
    plain = case.plain()
    for row in range(len(case.prompts)):
        alone = case.plain(rows=[row])
        assert alone.rows[0].tokens == plain.rows[row].tokens
        assert alone.rows[0].log == plain.rows[row].log
    tally["examples"] += 1
    tally["rows batched"] += len(case.prompts) - 1
    for name in names:
        stats = check_exact(case, DRAFTERS[name](case, plain), plain, name=name).stats
        tally["accepted"] += stats.accepted
        tally["rejected"] += stats.drafted - stats.accepted
        tally["passes saved"] += plain.stats.passes - stats.passes


def fixed_cases() -> Iterator[Case]:
    """Decodes in which a good drafter has something to go by."""
    rules = (Static(), Static(steps_per_block=3), Threshold(threshold=0.5), Threshold(fallback="best"), Sequential())
    for number, rule in enumerate(rules):
        for temperature in (0.0, 1.0):
            spec = TargetSpec(
                name="table", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=4,
                block_grid="absolute" if number % 2 else "prompt",
                attention="full" if number == 4 else "block_causal",
            )  # fmt: skip
            yield Case(
                target=TableTarget(spec, seed=number, levels=8, scale=8.0, smooth=0.8),
                prompts=((1, 0, 3), (5,)),
                row_ids=(7, 11),
                rule=rule,
                config=DecodeConfig(max_new_tokens=10, sampling=Sampling(temperature=temperature), seed=number),
                budget=8,
                window=1 + number % 3,
            )


@pytest.mark.parametrize("name", DRAFTERS)
def test_each_drafter_on_fixed_cases(name: str) -> None:
    accepted = rejected = 0
    for case in fixed_cases():
        plain = case.plain()
        stats = check_exact(case, DRAFTERS[name](case, plain), plain, name=name).stats
        accepted += stats.accepted
        rejected += stats.drafted - stats.accepted
    assert accepted > 0 or name not in ACCEPTED
    assert rejected > 0 or name not in REJECTED
    assert accepted == 0 or name not in HOPELESS
