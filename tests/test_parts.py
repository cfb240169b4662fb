"""Parts that return what their protocol does not allow are named, whatever they return; others cannot be harmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from spotkit.acceptance import StateEquality
from spotkit.errors import DraftError, PartError, SpotkitError, StalledError
from spotkit.logprobs import scatter
from spotkit.loop import decode
from spotkit.protocols import DecodingRule
from spotkit.rules import Static
from spotkit.sampler import Sampler
from spotkit.settings import DecodeConfig, Strategy
from spotkit.strategies.freedave import FreeDave
from spotkit.strategies.plain import Plain
from spotkit.testing.cases import Case, cases
from spotkit.testing.targets import TableTarget
from spotkit.types import Commit, Draft, Evidence, Guarantee, LogProbs, State, TargetSpec

SPEC = TargetSpec(name="t", vocab_size=11, mask_id=10, eos_ids=(), pad_id=0, block_length=4)
TARGET = TableTarget(SPEC, seed=3, smooth=0.9)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


@attrs.frozen
class Rule:
    """A rule that answers what `function` makes of a good commit."""

    function: Callable[[Commit, LogProbs, State], Any]
    uses_step = False

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Any:
        good = Static().commit(logprobs, state=state, sampler=sampler)
        return self.function(good, logprobs, state)


@attrs.frozen
class Drafter:
    """A drafter that answers what `function` makes of the state."""

    function: Callable[[State, Evidence], Any]

    def init(self, spec: TargetSpec, *, batch_size: int) -> None:
        return None

    def propose(
        self, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler, budget: int, carry: None
    ) -> Any:
        return self.function(state, evidence)


@attrs.frozen
class Acceptance:
    """An acceptance rule that answers what `function` says, and promises nothing."""

    function: Callable[[State, Tensor], Any]
    guarantee = Guarantee.APPROXIMATE

    def accept(self, candidates: State, *, successors: State, valid: Tensor, with_step: bool) -> Any:
        return self.function(candidates, valid)


@attrs.frozen
class Scorer:
    """A target that answers what `function` makes of good logits."""

    function: Callable[[Tensor, Any], Any]
    spec: TargetSpec = SPEC

    def open(self, prompts: Any, *, max_new_tokens: int) -> Any:
        return TARGET.open(prompts, max_new_tokens=max_new_tokens)

    def score(self, canvases: Tensor, *, context: Any) -> Any:
        return self.function(*TARGET.score(canvases, context=context))

    def extend(self, context: Any, *, block: Tensor, rows: Tensor) -> Any:
        return TARGET.extend(context, block=block, rows=rows)


STATIC, FREEDAVE, EQUALITY = Static(), FreeDave(), StateEquality()


def run(
    *,
    target: Any = TARGET,
    rule: Any = STATIC,
    drafter: Any = FREEDAVE,
    acceptance: Any = EQUALITY,
    window: int = 1,
) -> list[tuple[int, ...]]:
    strategy = Strategy(rule, drafter, acceptance, budget=8, window=window)
    return [r.tokens for r in decode(target, PROMPTS, strategy=strategy, config=DecodeConfig(max_new_tokens=9)).rows]


PLAIN = run(drafter=Plain())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda good, logprobs, state: None, "must return a Commit, got NoneType"),
        (lambda good, logprobs, state: (good.positions, good.tokens), "got tuple"),
        (lambda good, logprobs, state: Commit(good.positions, good.tokens.int()), "tokens: expected torch.int64"),
        (lambda good, logprobs, state: Commit(good.positions, good.tokens.double()), "tokens: expected torch.int64"),
        (lambda good, logprobs, state: Commit(good.positions, good.tokens[logprobs.index]), "tokens: expected"),
        (lambda good, logprobs, state: Commit(good.positions.long(), good.tokens), "positions: expected torch.bool"),
        (lambda good, logprobs, state: Commit(good.positions[:, 0], good.tokens[:, 0]), "positions: expected"),
        (lambda good, logprobs, state: Commit(good.positions.tolist(), good.tokens), "got list"),
        (lambda good, logprobs, state: Commit(good.positions, good.tokens.to_sparse()), "got torch.sparse_coo"),
        (lambda good, logprobs, state: attrs.evolve(good, tokens=torch.full_like(good.tokens, 10)), "token 10"),
        (lambda good, logprobs, state: attrs.evolve(good, tokens=torch.full_like(good.tokens, 11)), "token 11"),
        (lambda good, logprobs, state: attrs.evolve(good, tokens=torch.full_like(good.tokens, -1)), "token -1"),
        (lambda good, logprobs, state: Commit(torch.ones_like(good.positions), good.tokens), "committed position 0"),
        (lambda good, logprobs, state: Commit(~state.committed, good.tokens), "committed position 4"),
        (lambda good, logprobs, state: Commit(good.positions | state.committed, good.tokens), "not active"),
    ],
)
def test_a_rule_commits_legal_tokens_at_active_positions(function: Any, words: str) -> None:
    with pytest.raises(PartError) as error:
        run(rule=Rule(function), window=2)
    assert words in str(error.value)
    assert run(rule=Rule(lambda good, logprobs, state: good), window=2) == PLAIN


def test_a_rule_that_commits_the_same_position_again_is_stopped() -> None:
    def again(good: Commit, logprobs: LogProbs, state: State) -> Commit:
        first = torch.zeros_like(good.positions)
        first[..., 3] = True
        return Commit(first, scatter(logprobs.law.argmax(-1), logprobs.index, 0))

    with pytest.raises(PartError, match="row 0, step 1: .*position 7, which is not active"):
        decode(
            TARGET,
            [[1, 2, 3, 4]],
            strategy=Strategy(Rule(again), FreeDave(), StateEquality()),
            config=DecodeConfig(max_new_tokens=4),
        )


def test_a_rule_that_commits_nothing_is_stopped() -> None:
    with pytest.raises(StalledError):
        run(rule=Rule(lambda good, logprobs, state: Commit(good.positions & False, good.tokens)))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda logits, context: None, "must return the pair (logits, context), got NoneType"),
        (lambda logits, context: logits, "got Tensor"),
        (lambda logits, context: (logits, context, 1), "got a tuple of 3"),
        (lambda logits, context: (logits[..., :-1], context), "[2, 1, 4, 10]"),
        (lambda logits, context: (logits[..., :1], context), "[2, 1, 4, 1]"),
        (lambda logits, context: (torch.cat([logits, logits], -1), context), "[2, 1, 4, 22]"),
        (lambda logits, context: (torch.cat([logits, logits], 2), context), "[2, 1, 8, 11]"),
        (lambda logits, context: (logits.flatten(0, 1), context), "[2, 4, 11]"),
        (lambda logits, context: (logits[:1], context), "[1, 1, 4, 11]"),
        (lambda logits, context: (logits.long(), context), "torch.int64"),
        (lambda logits, context: (logits.to(torch.complex64), context), "torch.complex64"),
        (lambda logits, context: (logits.numpy(), context), "got ndarray"),
        (lambda logits, context: (logits.to("meta"), context), "on meta"),
    ],
)
def test_a_target_answers_logits_of_the_right_shape(function: Any, words: str) -> None:
    with pytest.raises(PartError) as error:
        run(target=Scorer(function))
    assert words in str(error.value)
    assert "target.score" in str(error.value)
    assert run(target=Scorer(lambda logits, context: (logits.float(), context))) == PLAIN


def good_draft(state: State) -> Draft:
    """Three times the same candidate."""
    spread = state.spread(3)
    first = spread.active & (spread.active.long().cumsum(-1) <= 1)
    moved = attrs.evolve(spread.with_tokens(first, torch.ones_like(spread.canvas)), step=spread.step + 1)
    return Draft(moved, torch.ones_like(spread.step, dtype=torch.bool))


def with_states(**change: Callable[[Any], Any]) -> Callable[[State, Evidence], Any]:
    """A drafter's answer in which some of the states' fields are changed."""

    def answer(state: State, evidence: Evidence) -> Any:
        draft = good_draft(state)
        fields = {name: function(getattr(draft.states, name)) for name, function in change.items()}
        return attrs.evolve(draft, states=attrs.evolve(draft.states, **fields)), None

    return answer


def with_draft(**change: Callable[[Any], Any]) -> Callable[[State, Evidence], Any]:
    """A drafter's answer in which some of the draft's fields are changed."""

    def answer(state: State, evidence: Evidence) -> Any:
        draft = good_draft(state)
        return attrs.evolve(draft, **{name: f(getattr(draft, name)) for name, f in change.items()}), None

    return answer


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda state, evidence: None, "must return the pair (draft or None, carry), got NoneType"),
        (lambda state, evidence: good_draft(state), "got Draft"),
        (lambda state, evidence: (good_draft(state), None, None), "got a tuple of 3"),
        (lambda state, evidence: (good_draft(state).states, None), "expected a Draft of a State, or None, got State"),
        (lambda state, evidence: ([good_draft(state)], None), "got list"),
        (with_draft(states=lambda _: None), "got states of NoneType"),
        (with_draft(valid=lambda _: None), "draft.valid: expected a tensor"),
        (with_draft(valid=lambda v: v.long()), "draft.valid: expected torch.bool"),
        (with_draft(valid=lambda v: v[0]), "draft.valid: expected"),
        (with_draft(valid=lambda v: torch.tensor(True)), "draft.valid: expected"),
        (with_draft(valid=lambda v: v[:, :2]), "draft.states.canvas: expected"),
        (with_draft(valid=lambda v: v.to("meta")), "on meta"),
        (with_states(canvas=lambda c: c[..., :3]), "draft.states.canvas: expected"),
        (with_states(canvas=lambda c: c[0]), "draft.states.canvas: expected"),
        (with_states(canvas=lambda c: c.double()), "draft.states.canvas: expected torch.int64"),
        (with_states(canvas=lambda c: c.int()), "draft.states.canvas: expected torch.int64"),
        (with_states(canvas=lambda c: c.tolist()), "got list"),
        (with_states(canvas=lambda c: c.numpy()), "got ndarray"),
        (with_states(canvas=lambda c: c.to_sparse()), "got torch.sparse_coo"),
        (with_states(committed=lambda c: c.long()), "draft.states.committed: expected torch.bool"),
        (with_states(step=lambda s: s[:, :1]), "draft.states.step: expected"),
        (with_states(step=lambda s: s.float()), "draft.states.step: expected torch.int64"),
        (with_states(block_length=lambda _: 3), "draft.states.block_length=3"),
        (with_states(block_length=lambda _: 0), "draft.states.block_length=0"),
        (with_states(block_length=lambda _: None), "draft.states.block_length=None"),
    ],
)
def test_a_draft_has_the_shape_of_the_state(function: Any, words: str) -> None:
    with pytest.raises(DraftError) as error:
        run(drafter=Drafter(function))
    assert words in str(error.value)


def overwrite(state: State, evidence: Evidence) -> Any:
    for tensor in (state.canvas, state.step, state.start, state.limit, state.row):
        tensor.fill_(3)
    state.committed.fill_(True)
    evidence.logprobs.fill_(0.0)
    evidence.known.fill_(True)
    evidence.committed.fill_(True)
    return None, None


@pytest.mark.parametrize(
    "function",
    [
        overwrite,
        with_states(),
        with_states(start=lambda _: None, limit=lambda _: None, row=lambda _: None),
        with_states(start=lambda s: torch.zeros(7)),
        with_states(step=lambda s: torch.full_like(s, 2**63 - 1)),
        with_states(step=lambda s: torch.full_like(s, -5)),
    ],
)
def test_nothing_else_that_a_drafter_does_changes_the_text(function: Any) -> None:
    for window in (1, 2):
        assert run(drafter=Drafter(function), window=window) == PLAIN


@given(case=cases())
def test_a_drafter_that_writes_into_what_it_is_shown_changes_nothing(case: Case) -> None:
    assert case.run(Drafter(overwrite)).same_text(case.plain())


def deepest(candidates: State, valid: Tensor) -> Tensor:
    """From every state to the one with the most committed positions, if that extends it."""
    count = candidates.committed.sum(-1).masked_fill(~valid, -1)
    best = count.argmax(-1, keepdim=True).expand_as(count)
    at = best.unsqueeze(-1).expand_as(candidates.canvas)
    committed, canvas = candidates.committed.gather(1, at), candidates.canvas.gather(1, at)
    kept = (~candidates.committed | (committed & (canvas == candidates.canvas))).all(-1)
    return torch.where(kept & (count.gather(1, best) > count), best, -1)


def test_a_rule_that_accepts_several_steps_at_once_loses_no_text() -> None:
    strategy = Strategy(Static(), FreeDave(), Acceptance(deepest), budget=8, window=2)
    result = decode(TARGET, PROMPTS, strategy=strategy, config=DecodeConfig(max_new_tokens=9))
    assert result.guarantee is Guarantee.APPROXIMATE
    assert any(len(step.positions) > 1 for row in result.rows for step in row.log)
    for row, prompt in zip(result.rows, PROMPTS, strict=True):
        assert len(row.tokens) == 9
        written = [p for step in row.log for p in step.positions]
        assert sorted(written) == list(range(len(prompt), len(prompt) + len(written)))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda candidates, valid: None, "acceptance.accept: expected a tensor"),
        (lambda candidates, valid: valid, "got torch.bool"),
        (lambda candidates, valid: candidates.step[:, 0] - 1, "acceptance.accept: expected torch.int64"),
        (lambda candidates, valid: torch.full_like(candidates.step, 50), "from candidate 0 to 50"),
        (lambda candidates, valid: torch.full_like(candidates.step, -7), "from candidate 0 to -7"),
        (lambda candidates, valid: torch.zeros_like(candidates.step), "from candidate 0 to 0, which does not extend"),
        (
            lambda candidates, valid: torch.where(
                torch.arange(candidates.step.shape[1]) == 0, candidates.step.shape[1] - 1, 0
            ).expand_as(candidates.step),
            "to 0, which does not extend it",
        ),
    ],
)
def test_an_acceptance_rule_leads_to_candidates_that_extend_the_state(function: Any, words: str) -> None:
    with pytest.raises(PartError) as error:
        run(acceptance=Acceptance(function))
    assert words in str(error.value)


def test_an_acceptance_rule_cannot_lead_to_a_candidate_that_does_not_count() -> None:
    def invalid(candidates: State, valid: Tensor) -> Tensor:
        return torch.where(valid.all(-1, keepdim=True), -1, (~valid).long().argmax(-1, keepdim=True)).expand_as(valid)

    def uneven(state: State, evidence: Evidence) -> Any:
        draft = good_draft(state)
        return attrs.evolve(draft, valid=torch.tensor([[True] * 3, [False] * 3])), None

    with pytest.raises(PartError, match="from candidate 0 to 1; give -1, or one of the 1 valid"):
        run(drafter=Drafter(uneven), acceptance=Acceptance(invalid))


def test_a_part_error_is_an_error_of_spotkit_and_parts_keep_their_own() -> None:
    assert issubclass(DraftError, PartError)
    assert issubclass(PartError, SpotkitError)

    def fails(state: State, evidence: Evidence) -> Any:
        raise np.linalg.LinAlgError("mine")

    with pytest.raises(np.linalg.LinAlgError, match="mine"):
        run(drafter=Drafter(fails))
