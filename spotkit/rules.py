"""Decoding rules: which open positions commit at a denoising step.

All are pure, apply to any number of states at once, and break ties by the lowest position.
"""

from __future__ import annotations

import math
from typing import Literal

import attrs
import torch
from torch import Tensor

from spotkit.errors import ConfigError
from spotkit.fields import one_of, positive
from spotkit.logprobs import Confidence, narrow, scatter
from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.types import Commit, LogProbs, State

Schedule = Literal["even", "linear"]
Measure = Literal["probability", "margin", "entropy"]

_LOWEST = -1e30  # below every log-prob, above the minus infinity of positions that may not commit


def _steps(_: object, field: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{field.name}={value!r}: give an integer of at least 1, or None for one per position")


def _threshold(_: object, field: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{field.name}={value!r}: give a probability (1 or more never passes)")


def schedule(block_length: int, steps: int | None) -> tuple[int, ...]:
    """Commits per step: `block_length` shared out over `steps`, the remainder to the first steps.

    More steps than positions leave zeros at the end. Source: SDAR and LLaDA, `get_num_transfer_tokens`.
    """
    steps = block_length if steps is None else steps
    share, rest = divmod(block_length, steps)
    return tuple(share + (i < rest) for i in range(steps))


def linear_schedule(block_length: int, steps: int | None, *, last: float = 1e-3) -> tuple[int, ...]:
    """Commits per step as the share of masks falls from 1 to `last` in equal steps; the last step commits the rest.

    Steps that would commit nothing are left out: they would leave the state as it is. In float32, as the source.
    Source: Dream `generation_utils.py`, `_sample`.
    """
    steps = block_length if steps is None else steps
    time = torch.linspace(1, last, steps + 1)
    left, counts = block_length, []
    for i in range(steps):
        count = left if i == steps - 1 else min(left, int(torch.tensor(float(left)) * (1 - time[i + 1] / time[i])))
        left -= count
        counts.append(count)
    return tuple(count for count in counts if count)


_SCHEDULES = {"even": schedule, "linear": linear_schedule}


def _granted(step: int, block_length: int, steps: int | None, kind: Schedule = "even") -> int:
    """How many positions the schedule grants a step; at least one, also beyond its end."""
    table = _SCHEDULES[kind](block_length, steps)
    return max(table[min(step, len(table) - 1)], 1)


def _quota(state: State, steps: int | None, kind: Schedule = "even") -> Tensor:
    """How many positions the schedule grants each state's step `[...]`."""
    if steps is None and kind == "even":
        return torch.ones_like(state.step)
    table = _SCHEDULES[kind](state.block_length, steps)
    counts = torch.tensor(table, device=state.step.device).clamp(min=1)
    return counts[state.step.clamp(max=len(table) - 1)]


def _leading(scores: Tensor, count: Tensor) -> Tensor:
    """The `count` `[...]` highest of `scores` `[..., N]`, as bool; equals go to the lowest position."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.zeros_like(order).scatter(-1, order, places) < count.unsqueeze(-1)


def _confidence(logprobs: LogProbs, tokens: Tensor, kind: Confidence) -> Tensor:
    """Log-prob of the drawn tokens, spread over the canvas; minus infinity where nothing may commit."""
    source = {"raw": logprobs.raw, "tempered": logprobs.tempered, "filtered": logprobs.law}[kind]
    chosen = source.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).clamp(min=_LOWEST)
    return scatter(chosen, logprobs.index, -math.inf)


def _sureness(logprobs: LogProbs, tokens: Tensor, kind: Confidence, measure: Measure) -> Tensor:
    """How sure the target is of each position, spread over the canvas; minus infinity where nothing may commit."""
    if measure == "probability":
        return _confidence(logprobs, tokens, kind)
    probs = {"raw": logprobs.raw, "tempered": logprobs.tempered, "filtered": logprobs.law}[kind].exp()
    if measure == "margin":
        best = probs.topk(2, dim=-1).values
        return scatter(best[..., 0] - best[..., 1], logprobs.index, -math.inf)
    return scatter((probs * (probs + 1e-10).log()).sum(-1), logprobs.index, -math.inf)


_KINDS = ("raw", "tempered", "filtered")


@attrs.frozen
class Static:
    """The most confident positions commit, a fixed number per step (low-confidence remasking).

    Attributes:
        steps_per_block: denoising steps that fill a block; None commits one position per step.
        confidence: the probability of the drawn token under the raw (temperature 1), tempered, or
            tempered and filtered distribution.
        measure: what makes a position confident: the `"probability"` of its token, the `"margin"` between its
            two most probable tokens, or low `"entropy"`.
        schedule: `"even"` shares (SDAR, LLaDA), or `"linear"` time (Dream).

    Source: SDAR `generate.py`, `low_confidence_static`; LLaDA `generate.py`, `low_confidence`; Dream
    `generation_utils.py`, `maskgit_plus`, `topk_margin` and `entropy`.
    """

    steps_per_block: int | None = attrs.field(default=None, validator=_steps)
    confidence: Confidence = attrs.field(default="raw", validator=one_of(*_KINDS))
    measure: Measure = attrs.field(default="probability", validator=one_of("probability", "margin", "entropy"))
    schedule: Schedule = attrs.field(default="even", validator=one_of(*_SCHEDULES))

    by_confidence = True

    @property
    def uses_step(self) -> bool:
        """Whether a schedule counts the steps."""
        return self.steps_per_block is not None or self.schedule != "even"

    def quota(self, step: int, *, block_length: int) -> int:
        """Positions committed at `step`, as long as so many are open."""
        return _granted(step, block_length, self.steps_per_block, self.schedule)

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """The most confident active positions, as many as the schedule grants."""
        tokens = sampler.draw(logprobs, state=state)
        confidence = _sureness(logprobs, tokens, self.confidence, self.measure)
        positions = _leading(confidence, _quota(state, self.steps_per_block, self.schedule)) & logprobs.index
        return Commit(positions, scatter(tokens, logprobs.index, 0))


@attrs.frozen
class Threshold:
    """Every position more confident than a threshold commits.

    Attributes:
        threshold: probability.
        comparator: `">"` (SDAR, TraDo, LLaDA2, Fast-dLLM v2) or `">="` (Fast-dLLM).
        fallback: `"quota"` commits the schedule's number of best positions when fewer pass (SDAR);
            `"best"` always adds the single best one (Fast-dLLM).
        steps_per_block: the schedule of the `"quota"` fallback; None means one position per step.
        confidence: see `Static`.
        most: `"all"` that pass commit, or no more than the `"schedule"` has granted up to this step and was not
            used before (Fast-dLLM for Dream; the schedule's shares are rounded down).

    Source: SDAR `generate.py`, `low_confidence_dynamic`; Fast-dLLM `llada/generate.py` and
    `dream/model/generation_utils.py`, `confidence_threshold`.
    """

    threshold: float = attrs.field(default=0.9, validator=_threshold)
    comparator: Literal[">", ">="] = attrs.field(default=">", validator=one_of(">", ">="))
    fallback: Literal["quota", "best"] = attrs.field(default="quota", validator=one_of("quota", "best"))
    steps_per_block: int | None = attrs.field(default=None, validator=_steps)
    confidence: Confidence = attrs.field(default="raw", validator=one_of(*_KINDS))
    most: Literal["all", "schedule"] = attrs.field(default="all", validator=one_of("all", "schedule"))

    @property
    def uses_step(self) -> bool:
        """Whether a schedule counts the steps."""
        return self.most == "schedule" or (self.fallback == "quota" and self.steps_per_block is not None)

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """The active positions above the threshold, or what the fallback says."""
        tokens = sampler.draw(logprobs, state=state)
        confidence = _confidence(logprobs, tokens, self.confidence)
        probability = confidence.exp()
        passed = probability > self.threshold if self.comparator == ">" else probability >= self.threshold
        passed = passed & logprobs.index
        if self.most == "schedule":
            passed = passed & _leading(confidence, self._unused(state, logprobs.index.sum(-1)))
        if self.fallback == "best":
            positions = passed | _leading(confidence, torch.ones_like(state.step))
        else:
            quota = _quota(state, self.steps_per_block)
            enough = passed.sum(-1) >= quota
            positions = torch.where(enough.unsqueeze(-1), passed, _leading(confidence, quota))
        return Commit(positions & logprobs.index, scatter(tokens, logprobs.index, 0))

    def _unused(self, state: State, still_open: Tensor) -> Tensor:
        """Positions granted up to each state's step and not committed yet `[...]`."""
        length = state.block_length
        steps = self.steps_per_block or length
        granted = max(length // steps, 1) * (state.step.clamp(max=steps - 1) + 1)
        return (granted - (length - still_open)).clamp(min=1)


def _number(_: object, field: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{field.name}={value!r}: give a number of at least 0 (0 commits one position per step)")


@attrs.frozen
class Factor:
    """The most confident positions commit as long as the `n`-th has a probability of at least `1 - factor / (n + 1)`.

    The best one always commits. If all but the least confident pass, that one commits too, as in the source.

    Attributes:
        factor: higher commits more.
        confidence: see `Static`.

    Source: Fast-dLLM `llada/generate.py`, `get_transfer_index_dynamic`.
    """

    factor: float = attrs.field(default=1.0, validator=_number)
    confidence: Confidence = attrs.field(default="raw", validator=one_of(*_KINDS))

    uses_step = False

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """The leading positions that pass."""
        tokens = sampler.draw(logprobs, state=state)
        confidence = _confidence(logprobs, tokens, self.confidence)
        ordered = confidence.sort(dim=-1, descending=True, stable=True).values.exp()
        place = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
        passed = (ordered >= 1 - self.factor / (place + 1)) | (place == 1)
        count = passed.long().cumprod(-1).sum(-1)
        due = logprobs.index.sum(-1)
        count = torch.where(count >= due - 1, due, count)
        return Commit(_leading(confidence, count) & logprobs.index, scatter(tokens, logprobs.index, 0))


@attrs.frozen
class EntropyBound:
    """The surest positions commit as long as the sum of their entropies, the largest left out, stays within a bound.

    So the tokens that commit together depend little on one another; the surest one always commits.

    Attributes:
        bound: nats; higher commits more.
        confidence: the distribution that entropies are taken of, see `Static`.
        measure: what makes a position sure, see `Static`.

    Source: EB-Sampler (arXiv 2505.24857); the default bound is that of SDAR's `entropy_bounded`.
    """

    bound: float = attrs.field(default=0.35, validator=_number)
    confidence: Confidence = attrs.field(default="raw", validator=one_of(*_KINDS))
    measure: Measure = attrs.field(default="entropy", validator=one_of("probability", "margin", "entropy"))

    uses_step = False

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """The leading positions within the bound."""
        tokens = sampler.draw(logprobs, state=state)
        sureness = _sureness(logprobs, tokens, self.confidence, self.measure)
        order = sureness.sort(dim=-1, descending=True, stable=True).indices
        entropy = -_sureness(logprobs, tokens, self.confidence, "entropy").gather(-1, order)
        spent = entropy.cumsum(-1) - entropy.cummax(-1).values
        count = (spent <= self.bound).long().cumprod(-1).sum(-1).clamp(min=1)
        return Commit(_leading(sureness, count) & logprobs.index, scatter(tokens, logprobs.index, 0))


@attrs.frozen
class Sequential:
    """The leftmost open positions commit, a fixed number per step.

    Attributes:
        steps_per_block: see `Static`.

    Source: SDAR `generate.py`, `sequential`.
    """

    steps_per_block: int | None = attrs.field(default=None, validator=_steps)

    by_confidence = False

    @property
    def uses_step(self) -> bool:
        """Whether a schedule counts the steps."""
        return self.steps_per_block is not None

    def quota(self, step: int, *, block_length: int) -> int:
        """Positions committed at `step`, as long as so many are open."""
        return _granted(step, block_length, self.steps_per_block)

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """The leftmost active positions, as many as the schedule grants."""
        tokens = sampler.draw(logprobs, state=state)
        first = logprobs.index.long().cumsum(-1) <= _quota(state, self.steps_per_block).unsqueeze(-1)
        return Commit(first & logprobs.index, scatter(tokens, logprobs.index, 0))


@attrs.frozen
class Ordered:
    """A rule that sees one part of the block after the other.

    Attributes:
        rule: decides within the part; one that counts steps is refused, as its count would be the block's.
        lead: the block's first position is a part of its own, before all others.
        span: positions per part; None means the whole block.

    Source: Fast-dLLM v2 `generation_functions.py` (`small_block_size`, and the first token of a block, which
    the pass over the block before has written); Fast-dLLM `dream/model/generation_utils_block.py` (the latter).
    """

    rule: DecodingRule
    lead: bool = False
    span: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))

    uses_step = False

    def __attrs_post_init__(self) -> None:
        if isinstance(self.rule, type) or not isinstance(self.rule, DecodingRule):
            raise ConfigError(f"rule={self.rule!r}: give an instance that follows the DecodingRule protocol")
        if self.rule.uses_step:
            raise ConfigError(f"rule={self.rule!r}: it counts the block's steps; give one without steps_per_block")

    @property
    def confidence(self) -> Confidence:
        """The inner rule's, for drafters."""
        kind: Confidence = getattr(self.rule, "confidence", "raw")
        return kind

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """What the rule commits among the active positions of the first part that has any."""
        width, length = state.canvas.shape[-1], state.block_length
        place = torch.arange(width, device=state.canvas.device) % length
        part = place // (self.span or length) + 1
        if self.lead:
            part = part.masked_fill(place == 0, 0)
        first = part.masked_fill(~logprobs.index, length + 1).amin(-1, keepdim=True)
        return self.rule.commit(narrow(logprobs, part == first), state=state, sampler=sampler)
