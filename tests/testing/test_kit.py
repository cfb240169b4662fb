"""The kit tells right from wrong: every known way to break exactness is caught by its check."""

from __future__ import annotations

import math
from collections import Counter

import attrs
import pytest
import torch
from torch import Tensor

from spotkit.acceptance import StateEquality, equal_states
from spotkit.logprobs import Sampling
from spotkit.protocols import AcceptanceRule, DecodingRule, Drafter, Target
from spotkit.results import Stats
from spotkit.rules import Sequential, Static, Threshold
from spotkit.sampler import Sampler
from spotkit.settings import DecodeConfig
from spotkit.strategies.freedave import FreeDave
from spotkit.tape import Tape
from spotkit.testing.cases import Case, check_counts, check_exact
from spotkit.testing.drafters import Altered, Clairvoyant, Forced, Joined, Nothing, Oracle, RandomStates, wrong_tokens
from spotkit.testing.targets import PoisonedTarget, SpyTarget, TableTarget
from spotkit.types import Commit, Draft, Guarantee, LogProbs, State, TargetSpec


class _Accept:
    guarantee = Guarantee.EXACT_PATH

    def accept(self, candidates: State, *, successors: State, valid: Tensor, with_step: bool) -> Tensor:
        match = self.match(successors, candidates, with_step) & valid.unsqueeze(1)
        match = match & (candidates.committed.sum(-1).unsqueeze(1) > candidates.committed.sum(-1).unsqueeze(2))
        return torch.where(match.any(-1) & valid, match.long().argmax(-1), -1)

    def match(self, left: State, right: State, with_step: bool) -> Tensor:
        raise NotImplementedError


class AnyCandidate(_Accept):
    def match(self, left: State, right: State, with_step: bool) -> Tensor:
        return torch.ones(*left.step.shape, right.step.shape[1], dtype=torch.bool)


class PositionsOnly(_Accept):
    def match(self, left: State, right: State, with_step: bool) -> Tensor:
        return (left.committed.unsqueeze(2) == right.committed.unsqueeze(1)).all(-1)


class TokensOnly(_Accept):
    """Right tokens at the positions of the successor, whatever else is committed."""

    def match(self, left: State, right: State, with_step: bool) -> Tensor:
        agree = (left.canvas.unsqueeze(2) == right.canvas.unsqueeze(1)) | ~left.committed.unsqueeze(2)
        return agree.all(-1)


class AnyStep(_Accept):
    def match(self, left: State, right: State, with_step: bool) -> Tensor:
        return equal_states(left, right, with_step=False)


@attrs.frozen
class Crowded:
    """A rule that commits one position more where many states are scored at once."""

    uses_step = True

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        return Static(1 if math.prod(state.step.shape) > 4 else None).commit(logprobs, state=state, sampler=sampler)


@attrs.frozen
class OrderedTape(Tape):
    """Noise that depends on how much is asked for at once."""

    def gumbel(self, keys: Tensor, tokens: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().gumbel(keys + keys.shape[0], tokens, dtype=dtype)


@attrs.frozen
class Leaky:
    """A target whose canvases of one row see each other."""

    inner: Target

    @property
    def spec(self) -> TargetSpec:
        return self.inner.spec

    def open(self, prompts, *, max_new_tokens: int):
        return self.inner.open(prompts, max_new_tokens=max_new_tokens)

    def score(self, canvases: Tensor, *, context):
        logits, context = self.inner.score(canvases, context=context)
        return logits + logits.roll(1, 1).flip(-1), context

    def extend(self, context, *, block: Tensor, rows: Tensor):
        return self.inner.extend(context, block=block, rows=rows)


SPEC = TargetSpec(name="t", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=4)


def case_of(rule: DecodingRule = Static(), temperature: float = 1.0) -> Case:  # noqa: B008
    return Case(
        target=TableTarget(SPEC, seed=8, levels=8, scale=6.0, smooth=0.7),
        prompts=((0, 1, 3), (5,), (4, 4, 4, 4)),
        row_ids=(1, 2, 3),
        rule=rule,
        config=DecodeConfig(max_new_tokens=12, sampling=Sampling(temperature)),
        budget=16,
        window=2,
    )


def far_first(draft: Draft, state: State, spec: TargetSpec) -> Draft:
    """The candidates in reverse order."""
    return Draft(draft.states.map(lambda t: t.flip(1)), draft.valid.flip(1))


def drafter_for(case: Case) -> Drafter:
    """One that gets candidates accepted and rejected, and offers far states before near ones."""
    truth = Clairvoyant.of(case.plain(), case.row_ids)
    return Joined((Altered(truth, wrong_tokens), RandomStates(count=2), Altered(truth, far_first)))


def caught(case: Case) -> bool:
    try:
        check_exact(case, drafter_for(case), case.plain())
    except AssertionError:
        return True
    return False


RULES = (Static(), Static(2), Threshold(0.5), Sequential())


@pytest.mark.parametrize("acceptance", [AnyCandidate(), PositionsOnly(), TokensOnly()])
@pytest.mark.parametrize("rule", RULES)
def test_wrong_acceptance_is_caught(acceptance: AcceptanceRule, rule: DecodingRule) -> None:
    case = case_of(rule)
    assert not caught(case)
    assert caught(attrs.evolve(case, acceptance=acceptance))


def test_acceptance_that_ignores_the_step_is_caught_under_noise() -> None:
    def with_steps_wrong(case: Case) -> bool:
        truth = Clairvoyant.of(case.plain(), case.row_ids)
        later = Altered(truth, lambda draft, state, spec: attrs.evolve(
            draft, states=attrs.evolve(draft.states, step=draft.states.step + 1)
        ))  # fmt: skip
        try:
            check_exact(case, later, case.plain())
        except AssertionError:
            return True
        return False

    assert not with_steps_wrong(case_of())
    assert with_steps_wrong(attrs.evolve(case_of(), acceptance=AnyStep()))
    assert not with_steps_wrong(attrs.evolve(case_of(temperature=0.0), acceptance=AnyStep()))


def test_a_rule_that_looks_at_its_company_is_caught() -> None:
    assert caught(case_of(Crowded()))


def test_a_target_whose_canvases_see_each_other_is_caught() -> None:
    case = case_of()
    assert caught(attrs.evolve(case, target=Leaky(case.target)))


def test_noise_that_depends_on_its_company_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not caught(case_of())
    monkeypatch.setattr("spotkit.settings.Tape", OrderedTape)
    assert caught(case_of())


@pytest.mark.parametrize("change", [{"steps": 9}, {"new_tokens": 9}, {"accepted": -1}, {"drafted": 0}, {"passes": 0}])
def test_counts_that_do_not_fit_are_caught(change: dict[str, int]) -> None:
    case = case_of()
    row = case.run(drafter_for(case)).rows[0]
    check_counts(row)
    with pytest.raises(AssertionError):
        check_counts(attrs.evolve(row, stats=attrs.evolve(row.stats, **change)))


def test_a_drafter_that_drafts_nothing_costs_what_plain_decoding_costs() -> None:
    case = case_of()
    for kind in ("none", "empty", "invalid"):
        stats = check_exact(case, Nothing(kind), case.plain()).stats
        assert attrs.evolve(stats, seconds=0, draft_seconds=0) == attrs.evolve(
            case.plain().stats, seconds=0, draft_seconds=0
        )


@pytest.mark.parametrize("kind", ["mask", "outside"])
def test_forced_nonsense_is_never_scored(kind: str) -> None:
    case = case_of()
    assert check_exact(case, Forced(kind), case.plain()).stats.drafted == 0


def test_the_spy_sees_every_call_and_changes_nothing() -> None:
    case = case_of()
    spy = SpyTarget(case.target)
    assert isinstance(spy, Target)
    assert attrs.evolve(case, target=spy).plain().same_text(case.plain())
    assert [c.name for c in spy.calls[:2]] == ["open", "score"]
    assert spy.calls[1].shape == (3, 1, 4)
    assert spy.passes == sum(c.name == "score" for c in spy.calls) == max(r.stats.passes for r in case.plain().rows)


def test_the_poisoned_target_fails_where_told() -> None:
    case = case_of()
    canvases = torch.tensor([[[0, 2, 2, 2], [0, 1, 2, 2]]])
    context = case.target.open([torch.tensor([], dtype=torch.long)], max_new_tokens=4)
    clean, _ = case.target.score(canvases, context=context)
    poisoned = PoisonedTarget(case.target, frozenset([(0, 1, 2, 2)]), token=3)
    logits, _ = poisoned.score(canvases, context=context)
    assert torch.equal(logits[0, 0], clean[0, 0])
    assert logits[0, 1].isnan().nonzero()[:, 1].tolist() == [3] * 4


@pytest.mark.parametrize("attention", ["block_causal", "full"])
def test_a_table_is_a_pure_function_of_what_a_position_may_see(attention: str) -> None:
    spec = attrs.evolve(SPEC, attention=attention, block_grid="prompt")
    target = TableTarget(spec, seed=1, smooth=0.0)

    def logits(ids: list[int], *, head: int = 0) -> Tensor:
        context = target.open([torch.tensor(ids[:head], dtype=torch.long)], max_new_tokens=8)
        return target.score(torch.tensor([[ids[head:]]]), context=context)[0][0, 0]

    text = [0, 1, 3, 4, 5, 0, 1, 3]
    base = logits(text)
    for place in range(8):
        other = logits([5 if i == place and t != 5 else 4 if i == place else t for i, t in enumerate(text)])
        changed = [not torch.equal(base[i], other[i]) for i in range(8)]
        seen = [True] * 8 if attention == "full" else [i // 4 >= place // 4 for i in range(8)]
        assert changed == seen
    if attention == "block_causal":
        assert torch.equal(logits(text, head=4), base[4:])
    levels = attrs.evolve(target, levels=3, scale=6.0).score(torch.tensor([[text]]), context=((),))[0]
    assert set(levels.unique().tolist()) == {0.0, 2.0, 4.0}


def test_stats_are_plain_numbers() -> None:
    assert Stats() == Stats(0, 0, 0, 0, 0, 0.0, 0.0)
    case = case_of()
    assert check_exact(case, FreeDave(), case.plain()).stats.accepted > 0
    assert StateEquality().guarantee is Guarantee.EXACT_PATH


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("window", [1, 2])
def test_the_oracle_lies_between_a_chain_and_clairvoyance(temperature: float, window: int) -> None:
    """It has the order, and no better tokens than the evidence; where tokens never change it knows all."""
    spec = TargetSpec("t", 9, 2, eos_ids=(), pad_id=0, block_length=5)
    config = DecodeConfig(max_new_tokens=25, sampling=Sampling(temperature))
    for smooth in (0.8, 1.0):
        passes: Counter[str] = Counter()
        for seed in range(6):
            target = TableTarget(spec, seed=seed, smooth=smooth)
            case = Case(target, ((0, 1, 3, 4, 5),), (seed,), Static(), config, budget=6, window=window)
            plain = case.plain()
            for drafter in (FreeDave(), Oracle.of(plain, case.row_ids), Clairvoyant.of(plain, case.row_ids)):
                passes[type(drafter).__name__] += check_exact(case, drafter, plain).stats.passes
        if smooth < 1:
            assert passes["Clairvoyant"] < passes["Oracle"] < passes["FreeDave"]
        elif temperature == 0:
            # Without knowledge of the first block it cannot draft in the first pass, as the clairvoyant can.
            assert passes["Clairvoyant"] <= passes["Oracle"] == passes["FreeDave"]
