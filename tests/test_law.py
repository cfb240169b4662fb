"""The sampled decoder's distribution against the decoding rule's exact law, by enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import attrs
import pytest
import torch

from spotkit.logprobs import Sampling
from spotkit.protocols import DecodingRule
from spotkit.rules import Sequential, Static, Threshold
from spotkit.settings import DecodeConfig
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case
from spotkit.testing.drafters import RandomStates
from spotkit.testing.targets import TableTarget
from spotkit.types import TargetSpec

SAMPLES = 1500
SEEDS = (0, 1)
Law = dict[tuple[int, ...], float]


def make_case(rule: DecodingRule, *, length: int, new: int, rows: int = SAMPLES) -> Case:
    """Many rows with one prompt: each row id is a sample."""
    spec = TargetSpec(
        name="table", vocab_size=4, mask_id=1, eos_ids=(), pad_id=0, block_length=length, block_grid="prompt"
    )
    return Case(
        target=TableTarget(spec, seed=6, scale=2.5, smooth=0.3),
        prompts=((0, 3),) * rows,
        row_ids=tuple(range(rows)),
        rule=rule,
        config=DecodeConfig(max_new_tokens=new, sampling=Sampling(temperature=1.0)),
        budget=6,
        window=2,
    )


def commits(rule: DecodingRule, confidence: dict[int, float], step: int, length: int) -> list[int]:
    """The positions that commit at a step."""
    ranked = sorted(confidence, key=lambda i: (-confidence[i], i))
    if isinstance(rule, Threshold):
        return [i for i in ranked if confidence[i] > rule.threshold] or ranked[:1]
    if isinstance(rule, Sequential):
        ranked = sorted(confidence)
    steps = rule.steps_per_block or length
    return ranked[: length // steps + (step < length % steps)]


def law(case: Case, text: tuple[int, ...] = ()) -> Law:
    """Probability of every text that begins with the finished blocks `text`, by recursion over states."""
    spec, length = case.target.spec, case.target.spec.block_length
    if len(text) >= case.config.max_new_tokens:
        return {text: 1.0}
    context = case.target.open([torch.tensor(case.prompts[0] + text)], max_new_tokens=1)

    def states(block: tuple[int, ...], step: int) -> Law:
        opened = [i for i in range(length) if block[i] == spec.mask_id]
        if not opened:
            return law(case, text + block)
        logits = case.target.score(torch.tensor([[list(block)]]), context=context)[0][0, 0]
        logits[:, spec.mask_id] = -math.inf
        probability = logits.softmax(-1).tolist()
        total: Law = {}
        ids = [t for t in range(spec.vocab_size) if t != spec.mask_id]
        for drawn in itertools.product(ids, repeat=len(opened)):
            picks = dict(zip(opened, drawn, strict=True))
            share = math.prod(probability[i][t] for i, t in picks.items())
            chosen = commits(case.rule, {i: probability[i][t] for i, t in picks.items()}, step, length)
            after = tuple(picks[i] if i in chosen else block[i] for i in range(length))
            for final, chance in states(after, step + 1).items():
                total[final] = total.get(final, 0.0) + share * chance
        return total

    return states((spec.mask_id,) * length, 0)


def surprise(counts: Counter[tuple[int, ...]], expected: Law) -> float:
    """Chi-square statistic of the counts as a standard normal deviate (Wilson and Hilferty)."""
    size = sum(counts.values())
    big = [text for text, chance in expected.items() if chance * size >= 5]
    pairs = [(counts[text], expected[text] * size) for text in big]
    rest = (size - sum(seen for seen, _ in pairs), size - sum(due for _, due in pairs))
    pairs += [rest] if rest[1] >= 5 else []
    statistic = sum((seen - due) ** 2 / due for seen, due in pairs)
    freedom = len(pairs) - 1
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def samples(case: Case) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in SEEDS:
        seeded = attrs.evolve(case, config=attrs.evolve(case.config, seed=seed))
        counts.update(row.tokens for row in seeded.plain().rows)
    return counts


@pytest.mark.parametrize(
    ("rule", "length", "new"),
    [
        (Static(), 3, 3),
        (Static(steps_per_block=2), 3, 3),
        (Static(), 2, 4),
        (Threshold(threshold=0.5, fallback="best"), 3, 3),
        (Sequential(), 3, 3),
    ],
)
def test_samples_follow_the_rules_law(rule: DecodingRule, length: int, new: int) -> None:
    case = make_case(rule, length=length, new=new)
    expected = law(case)
    assert math.isclose(sum(expected.values()), 1.0)
    counts = samples(case)
    assert set(counts) <= set(expected)
    assert surprise(counts, expected) < 3.5


@pytest.mark.parametrize(
    "config",
    [
        DecodeConfig(max_new_tokens=3, sampling=Sampling(temperature=0.8)),
        DecodeConfig(max_new_tokens=3, sampling=Sampling(temperature=1.0), keyed_by="position"),
        DecodeConfig(max_new_tokens=3, sampling=Sampling(temperature=1.0, top_p=0.75)),
    ],
)
def test_the_check_tells_laws_apart(config: DecodeConfig) -> None:
    case = make_case(Static(), length=3, new=3)
    assert surprise(samples(attrs.evolve(case, config=config)), law(case)) > 4.5


@pytest.mark.parametrize("rule", [Static(), Threshold(threshold=0.5), Sequential(steps_per_block=2)])
def test_drafts_leave_every_sample_as_it_is(rule: DecodingRule) -> None:
    case = make_case(rule, length=2, new=4, rows=200)
    plain = case.plain()
    for drafter in (FreeDave(), RandomStates()):
        result = case.run(drafter)
        assert result.same_text(plain)
        assert 0 < result.stats.accepted < result.stats.drafted
