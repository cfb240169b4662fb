"""The decode loop seen from outside: events, counts, calls of the target, and errors on the way."""

from __future__ import annotations

import math
from collections.abc import Container

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotkit.acceptance import StateEquality
from spotkit.errors import NonFiniteLogitsError, StalledError
from spotkit.logprobs import Sampling, scatter
from spotkit.loop import decode, stream
from spotkit.results import Collector, total
from spotkit.rules import Sequential, Static
from spotkit.sampler import Sampler
from spotkit.settings import DecodeConfig, Strategy
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case, cases, check_exact
from spotkit.testing.drafters import Clairvoyant, Joined, Nothing, RandomStates
from spotkit.testing.targets import PoisonedTarget, SpyTarget, TableTarget
from spotkit.types import Commit, LogProbs, State, TargetSpec

SPEC = TargetSpec(name="t", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=4)
MASK = SPEC.mask_id


def simple(**changes: object) -> Case:
    case = Case(
        target=TableTarget(SPEC, seed=4, levels=6, smooth=0.7),
        prompts=((0, 1, 3, 4), (5, 1, 0, 3, 4)),
        row_ids=(3, 8),
        rule=Static(),
        config=DecodeConfig(max_new_tokens=8),
        budget=6,
    )
    return attrs.evolve(case, **changes)


def events_of(case: Case, drafter: object) -> list:
    strategy = Strategy(case.rule, drafter, StateEquality(), budget=case.budget, window=case.window)
    return list(stream(case.target, case.prompts, strategy=strategy, config=case.config, row_ids=case.row_ids))


@settings(max_examples=settings.default.max_examples // 2)
@given(case=cases())
def test_events_tell_what_happened(case: Case) -> None:
    """Every field of an event, against the plain commit log and against the other fields."""
    plain = case.plain()
    drafter = Joined((RandomStates(), Clairvoyant.of(plain, case.row_ids), FreeDave()))
    events = events_of(case, drafter)
    result = case.run(drafter)
    rows = range(len(case.prompts))
    collector = Collector.of(len(case.prompts))
    for number, event in enumerate(events):
        collector.add(event)
        assert event.index == number
        assert any(event.active)
        assert event.seconds >= event.draft_seconds >= 0
        for row in rows:
            path, steps = event.paths[row], event.steps[row]
            assert len(path) == len(steps)
            if not event.active[row]:
                assert path == ()
                continue
            assert path[0] == 0
            assert event.valid[row, list(path)].all()
            start = int(event.candidates.start[row, 0])
            for k, step in zip(path, steps, strict=True):
                open_ = {i for i, done in enumerate(event.candidates.committed[row, k].tolist()) if not done}
                assert {p - start for p in step.positions} <= open_
                assert case.target.spec.mask_id not in step.tokens
            ids = event.state.canvas[row].tolist()
            for step in steps:
                assert [ids[p - start] for p in step.positions] == list(step.tokens)
                assert event.state.committed[row, [p - start for p in step.positions]].all()
            after = (
                steps[-1].step + 1 if event.state.open_block[row] == event.candidates.open_block[row, path[-1]] else 0
            )
            assert int(event.state.step[row]) == after
    for row in rows:
        assert tuple(collector.logs[row]) == result.rows[row].log == plain.rows[row].log
        alive = [event.active[row] for event in events]
        assert alive == sorted(alive, reverse=True)
        assert result.rows[row].stats.passes == sum(alive)
        drafted = sum(int(event.valid[row].sum()) - 1 for event in events if event.active[row])
        assert result.rows[row].stats.drafted == drafted


@settings(max_examples=settings.default.max_examples // 2)
@given(case=cases())
def test_what_the_target_is_asked(case: Case) -> None:
    """One pass serves all rows; no pass for the prompt or a finished block; canvases within the budget."""
    spy = SpyTarget(case.target)
    result = attrs.evolve(case, target=spy).run(Joined((RandomStates(count=40), FreeDave())))
    spec, rows = case.target.spec, len(case.prompts)
    assert spy.passes == max(row.stats.passes for row in result.rows)
    opened, *others = spy.calls
    starts = [
        len(p) if spec.block_grid == "prompt" else len(p) // spec.block_length * spec.block_length
        for p in case.prompts
    ]
    assert (opened.name, list(opened.shape)) == ("open", starts)
    spans = [
        math.ceil((len(p) + case.config.max_new_tokens - start) / spec.block_length)
        for p, start in zip(case.prompts, starts, strict=True)
    ]
    blocks = max(spans) if spec.attention == "full" else min(case.window, max(spans))
    for call in others:
        if call.name == "score":
            assert call.shape[0] == rows
            assert 1 <= call.shape[1] <= case.budget
            assert call.shape[2] == blocks * spec.block_length
            assert call.dtype == torch.int64
        else:
            assert call.name == "extend"
            assert spec.attention == "block_causal"
            assert call.shape == (rows, spec.block_length)
    most = max(s.block for row in result.rows for s in row.log)
    assert sum(call.name == "extend" for call in others) <= (most - min(starts)) // spec.block_length + rows


def test_two_streams_do_not_disturb_each_other() -> None:
    """One strategy object, two requests in turn, then the first again."""
    case, drafter = simple(), FreeDave()
    strategy = Strategy(Static(), drafter, StateEquality(), budget=6, window=2)
    long, short = [(0, 1, 3, 4)], [(5,)]
    config = DecodeConfig(max_new_tokens=8, sampling=Sampling(1.0))

    def run(prompts: list[tuple[int, ...]]) -> list:
        return [e.steps for e in stream(case.target, prompts, strategy=strategy, config=config)]

    alone = [run(long), run(short)]
    assert run(long) == alone[0]
    pair = [stream(case.target, p, strategy=strategy, config=config) for p in (long, short)]
    seen: list[list] = [[], []]
    while pair[0] or pair[1]:
        for i in (0, 1):
            event = next(pair[i], None) if pair[i] else None
            if event is None:
                pair[i] = None
            else:
                seen[i].append(event.steps)
    assert seen == alone


def test_totals() -> None:
    result = simple().run(FreeDave())
    assert result.stats == total([row.stats for row in result.rows])
    stats = result.stats
    assert stats.steps_per_pass == stats.steps / stats.passes > 1
    assert stats.tokens_per_forward == 16 / stats.passes
    assert stats.tokens_per_second == 16 / stats.seconds
    assert total([]).steps_per_pass == total([]).tokens_per_forward == total([]).tokens_per_second == 0
    assert not result.same_text(simple(rule=Sequential()).plain())


def visited(case: Case, row: int) -> list[tuple[int, ...]]:
    """The canvases that the plain decode of one row goes through, with a block per canvas."""
    return [
        tuple(event.candidates.canvas[row, 0].tolist())
        for event in events_of(attrs.evolve(case, budget=1), Nothing())
        if event.active[row]
    ]


@attrs.frozen
class AllBut(Container[tuple[int, ...]]):
    """Every canvas but these."""

    canvases: frozenset[tuple[int, ...]]

    def __contains__(self, canvas: object) -> bool:
        return canvas not in self.canvases


@settings(max_examples=settings.default.max_examples // 2)
@given(case=cases(), value=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_nan_in_rejected_candidates_does_no_harm(case: Case, value: float) -> None:
    """The target answers in earnest only where the plain decoder asks."""
    case = attrs.evolve(case, window=1)
    plain = case.plain()
    fine = {canvas for row in range(len(case.prompts)) for canvas in visited(case, row)}
    poisoned = attrs.evolve(case, target=PoisonedTarget(case.target, AllBut(frozenset(fine)), value))
    drafter = Joined((RandomStates(count=3), Clairvoyant.of(plain, case.row_ids), FreeDave()))
    check_exact(poisoned, drafter, plain)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_nan_on_the_path_is_an_error_that_says_where(number: int, row: int, value: float) -> None:
    case = simple(prompts=((0, 1, 3, 4, 0), (5, 1, 0, 3, 4)))
    plain = case.plain()
    canvas, step = visited(case, row)[number], plain.rows[row].log[number]
    assert all(canvas not in visited(case, other) for other in (0, 1) if other != row)
    place = step.block + canvas.index(MASK)
    poisoned = attrs.evolve(case, target=PoisonedTarget(case.target, frozenset([canvas]), value))
    for drafter in (Nothing(), Clairvoyant.of(plain, case.row_ids), FreeDave()):
        with pytest.raises(NonFiniteLogitsError) as error:
            poisoned.run(drafter)
        assert f"row {row}, position {place}, step {step.step}:" in str(error.value)


@pytest.mark.parametrize(("value", "token", "fails"), [
    (math.nan, 1, True), (math.inf, 1, True), (-math.inf, 1, False), (math.nan, MASK, False), (math.inf, MASK, False),
])  # fmt: skip
def test_a_single_bad_logit(value: float, token: int, fails: bool) -> None:
    """Minus infinity forbids a token; what is said of the mask id does not count."""
    case = simple()
    poisoned = attrs.evolve(case, target=PoisonedTarget(case.target, AllBut(frozenset()), value, token))
    if fails:
        with pytest.raises(NonFiniteLogitsError):
            poisoned.run(FreeDave())
    else:
        written = {t for row in poisoned.run(FreeDave()).rows for t in row.tokens}
        assert token not in written


@attrs.frozen
class Idle:
    """Commits the leftmost position, but nothing once `after` are committed in the block."""

    after: int
    uses_step = False

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        tokens = sampler.draw(logprobs, state=state)
        stop = state.committed[..., : state.block_length].sum(-1, keepdim=True) >= self.after
        return Commit(
            logprobs.index & (logprobs.index.long().cumsum(-1) == 1) & ~stop, scatter(tokens, logprobs.index, 0)
        )


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("drafter", [Nothing(), FreeDave()])
def test_a_rule_that_commits_nothing_is_an_error(after: int, drafter: object) -> None:
    spy = SpyTarget(simple().target)
    case = simple(rule=Idle(after), prompts=((0, 1, 3, 4),), row_ids=(0,), target=spy)
    with pytest.raises(StalledError) as error:
        case.run(drafter)
    assert f"row 0, step {after}:" in str(error.value)
    assert spy.passes <= after + 1


def test_a_decode_needs_no_row_ids() -> None:
    """They default to the index, so that rows differ and a batch repeats."""
    case = simple(config=DecodeConfig(20, Sampling(2.0)), prompts=((0, 1), (0, 1)), row_ids=(0, 1))
    strategy = Strategy(case.rule, Nothing(), StateEquality(), budget=1)
    result = decode(case.target, case.prompts, strategy=strategy, config=case.config)
    assert result.same_text(case.plain())
    assert result.rows[0].tokens != result.rows[1].tokens
