"""Fast-dLLM v2's block cache: what is scored together, and that nothing is accepted which it cannot be sure of."""

from __future__ import annotations

import functools
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotkit.acceptance import StateEquality
from spotkit.adapters.block_cached import BlockCached
from spotkit.errors import ConfigError, PartError
from spotkit.loading import load
from spotkit.logprobs import Sampling
from spotkit.loop import decode, stream
from spotkit.rules import Ordered, Static, Threshold
from spotkit.settings import DecodeConfig, Strategy
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case, check_exact
from spotkit.testing.conformance import Respecified
from spotkit.testing.drafters import Clairvoyant
from spotkit.testing.targets import PoisonedTarget, SpyTarget, TableTarget
from spotkit.types import TargetSpec

FOLDER = Path(__file__).parent.parent / "data/conformance/checkpoints/fast_dllm_v2"
MASK = 123
RULE = Ordered(Static(), lead=True, span=4)


@functools.cache
def target(layout: str = "tree", cache: str = "block", length: int = 8, span: int = 4):
    options = {"span": span} if cache == "block" else {}
    return load(FOLDER, dtype="float32", mask_id=MASK, layout=layout, cache=cache, block_length=length, **options)


def case_of(of, seed: int, temperature: float = 0.0, rule=RULE) -> Case:
    numbers = torch.Generator().manual_seed(seed)
    prompts = tuple(tuple(torch.randint(118, (n,), generator=numbers).tolist()) for n in (5, 16, 11))
    config = DecodeConfig(max_new_tokens=20, sampling=Sampling(temperature), seed=seed, finish_block=True)
    return Case(of, prompts, (0, 1, 2), rule, config, budget=6)


@pytest.mark.parametrize("layout", ["tree", "batch"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_accepted_inside_a_part(layout: str, temperature: float) -> None:
    case = case_of(target(layout), 1, temperature)
    plain = case.plain()
    knowing = check_exact(case, Clairvoyant.of(plain, case.row_ids), plain)
    assert knowing.stats.accepted > knowing.stats.steps // 4
    assert knowing.cache == "block"
    guessing = check_exact(case, FreeDave(), plain)
    assert guessing.stats.drafted > guessing.stats.accepted


def test_it_is_another_decoder_than_without_the_cache() -> None:
    texts = {
        cache: [case_of(target(cache=cache), seed).plain().rows for seed in range(6)] for cache in ("block", "exact")
    }
    assert [[r.tokens for r in rows] for rows in texts["block"]] != [
        [r.tokens for r in rows] for rows in texts["exact"]
    ]


@attrs.frozen(eq=False)
class Reckless(BlockCached):
    """Would accept every state, whatever the pass that it should have read from."""

    def admits(self, canvases, *, context):
        return torch.ones(canvases.shape[:2], dtype=torch.bool)


def test_without_the_selection_drafting_would_not_be_exact() -> None:
    honest = target()
    fields = {f.name: getattr(honest, f.name) for f in attrs.fields(type(honest))}
    wrong = 0
    for seed in range(8):
        case = case_of(Reckless(**fields), seed)
        plain = case.plain()
        try:
            check_exact(case, Clairvoyant.of(plain, case.row_ids), plain)
        except AssertionError:
            wrong += 1
        check_exact(attrs.evolve(case, target=honest), Clairvoyant.of(plain, case.row_ids), plain)
    assert wrong > 0


@pytest.mark.parametrize("budget", [2, 8])
def test_what_is_not_admitted_is_not_scored(budget: int) -> None:
    case = case_of(target(), 3)
    row = attrs.evolve(case, prompts=case.prompts[:1], row_ids=case.row_ids[:1])
    strategy = Strategy(row.rule, FreeDave(), StateEquality(), budget=budget)
    spy = SpyTarget(row.target)
    events = list(stream(spy, row.prompts, strategy=strategy, config=row.config))
    assert all(bool(event.valid.all()) for event in events)
    widths = [call.shape[1] for call in spy.calls if call.name == "score"]
    assert widths == [event.valid.shape[1] for event in events]
    assert min(widths) == 1 < max(widths)


AROUND = {
    "respecified": lambda of: Respecified(of, of.spec),
    "spied": SpyTarget,
    "poisoned": lambda of: PoisonedTarget(of, frozenset()),
}


@pytest.mark.parametrize("around", sorted(AROUND))
def test_a_target_around_it_admits_no_more(around: str) -> None:
    for seed in range(4):
        case = case_of(AROUND[around](target()), seed)
        plain = case.plain()
        assert check_exact(case, Clairvoyant.of(plain, case.row_ids), plain).stats.accepted > 0


def canvas(*ids: int | None) -> list[int]:
    return [MASK if i is None else i for i in ids]


STATES = {
    "lead open": canvas(*[None] * 8),
    "first part begun": canvas(5, None, None, None, *[None] * 4),
    "first part further": canvas(5, None, 7, None, *[None] * 4),
    "first part full": canvas(5, 6, 7, 8, *[None] * 4),
    "second part, first open": canvas(5, 6, 7, 8, None, 9, None, None),
    "second part begun": canvas(5, 6, 7, 8, 9, None, None, None),
    "second part further": canvas(5, 6, 7, 8, 9, 4, None, None),
}
ADMITTED = {
    "lead open": set(),
    "first part begun": {"first part further"},
    "first part further": {"first part begun"},
    "first part full": {"second part begun", "second part further"},
    "second part, first open": {"second part begun", "second part further"},
    "second part begun": {"second part further"},
    "second part further": {"second part begun"},
}


@pytest.mark.parametrize("current", sorted(STATES))
def test_what_can_be_scored_beside_what(current: str) -> None:
    of = target()
    others = [name for name in STATES if name != current]
    canvases = torch.tensor([[STATES[current], *(STATES[name] for name in others)]])
    admitted = of.admits(canvases, context=of.open([torch.tensor([], dtype=torch.int64)], max_new_tokens=8))[
        0
    ].tolist()
    assert admitted[0]
    assert {name for name, good in zip(others, admitted[1:], strict=True) if good} == ADMITTED[current]


@pytest.mark.parametrize("layout", ["tree", "batch"])
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), length=st.sampled_from([8, 7]), span=st.sampled_from([4, 3]))
def test_logits_are_those_of_each_state_alone(layout: str, seed: int, length: int, span: int) -> None:
    """Rows at different places of their block share passes; each state gets what it gets alone."""
    of = target(layout, length=length, span=span)
    numbers = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(118, (n * length,), generator=numbers) for n in (1, 0, 2)]

    def states(part: int) -> torch.Tensor:
        """Four states of the same part, the first position of it committed."""
        made = torch.randint(118, (4, length), generator=numbers)
        made[:, part * span + 1 :] = MASK
        chosen = torch.rand(4, length, generator=numbers) < 0.4
        inside = torch.arange(length) < min((part + 1) * span, length) - 1
        made = torch.where(chosen & inside & (made == MASK), torch.randint(118, (4, length), generator=numbers), made)
        made[1:, : part * span + 1] = made[0, : part * span + 1]
        return made

    canvases = torch.stack([states(0), states(1), states(0)])
    context = of.open(prompts, max_new_tokens=16)
    alone = [of.open([prompt], max_new_tokens=16) for prompt in prompts]
    for _ in range(2):
        logits, after = of.score(canvases, context=context)
        turned, _ = of.score(canvases[:, [0, 3, 1, 2]], context=context)
        torch.testing.assert_close(turned, logits[:, [0, 3, 1, 2]], rtol=0, atol=5e-4)
        for row in range(3):
            one, alone_after = of.score(canvases[row : row + 1, :1], context=alone[row])
            torch.testing.assert_close(logits[row, :1], one[0], rtol=0, atol=5e-4)
            for state in range(1, 4):
                pair = canvases[row : row + 1, [0, state]]
                two, _ = of.score(pair, context=alone[row])
                torch.testing.assert_close(logits[row, state], two[0, 1], rtol=0, atol=5e-4)
            alone[row] = alone_after
        context = after


@pytest.mark.parametrize("layout", ["tree", "batch"])
def test_a_new_block_reads_nothing_of_the_pass_over_the_old_one(layout: str) -> None:
    of = target(layout)
    prompts, block = [torch.arange(8), torch.arange(16)], torch.arange(20, 36).view(2, 8)
    begun = torch.tensor(canvas(5, None, 7, None, *[None] * 4)).expand(2, 1, 8)
    _, context = of.score(begun, context=of.open(prompts, max_new_tokens=16))
    moved, _ = of.score(begun, context=of.extend(context, block=block, rows=torch.tensor([True, False])))
    alone, _ = of.score(begun[:1], context=of.open([torch.cat([prompts[0], block[0]])], max_new_tokens=8))
    torch.testing.assert_close(moved[:1], alone, rtol=0, atol=5e-4)
    stayed, _ = of.score(begun, context=context)
    torch.testing.assert_close(moved[1], stayed[1], rtol=0, atol=5e-4)
    assert (moved[0] - stayed[0]).abs().max() > 0.1


def test_wrong_shapes_and_options_are_refused() -> None:
    of = target()
    with pytest.raises(ConfigError, match="a canvas is one block of 8"):
        of.score(torch.zeros(1, 1, 16, dtype=torch.int64), context=of.open([torch.tensor([1] * 8)], max_new_tokens=8))
    with pytest.raises(ConfigError, match="span=4: only cache='block' makes use of it"):
        load(FOLDER, mask_id=MASK, span=4)
    with pytest.raises(ConfigError, match="span=0"):
        load(FOLDER, mask_id=MASK, cache="block", span=0)
    with pytest.raises(ConfigError, match="cache='block': SDAR has exact"):
        load(FOLDER.parent / "sdar", cache="block")


def test_the_preset_writes_the_parts_that_the_target_runs() -> None:
    of = load(FOLDER, mask_id=MASK, cache="block", span=16)
    assert (of.span, of.presets["threshold"].rule.span, of.spec.cache) == (16, 16, "approximate")
    assert of.presets["threshold"].rule.rule == Threshold(0.95, fallback="best", confidence="filtered")


SPEC = TargetSpec("t", 6, 2, eos_ids=(), pad_id=0, block_length=4)


@pytest.mark.parametrize(
    "answer",
    [None, True, [True], torch.ones(1, 2), torch.ones(1, 1, 1, dtype=torch.bool), torch.ones(9, dtype=torch.bool)],
)
def test_a_selection_of_wrong_type_or_shape(answer: object) -> None:
    @attrs.frozen
    class Odd(TableTarget):
        def admits(self, canvases, *, context):
            return answer

    with pytest.raises(PartError, match=r"target\.admits: expected"):
        decode(Odd(SPEC), [[1]], config=DecodeConfig(max_new_tokens=4))


def test_a_target_that_admits_nothing_decodes_plainly() -> None:
    @attrs.frozen
    class Alone(TableTarget):
        def admits(self, canvases, *, context):
            return torch.zeros(canvases.shape[:2], dtype=torch.bool)

    case = Case(Alone(SPEC, seed=2, smooth=0.9), ((1, 3),), (0,), Static(), DecodeConfig(max_new_tokens=9), budget=5)
    plain = case.plain()
    result = check_exact(case, FreeDave(), plain)
    assert (result.stats.passes, result.stats.drafted) == (plain.stats.passes, 0)
    free = attrs.evolve(case, target=TableTarget(SPEC, seed=2, smooth=0.9))
    assert free.run(FreeDave()).stats.passes < plain.stats.passes
