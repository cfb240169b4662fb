"""Decoding rules: which open positions commit at a denoising step.

All are pure, apply to any number of states at once, and break ties by the lowest position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import attrs
import torch
from torch import Tensor

from spotkit.errors import ConfigError
from spotkit.logprobs import Confidence, scatter
from spotkit.sampler import Sampler
from spotkit.types import Commit, LogProbs, State

_LOWEST = -1e30  # below every log-prob, above the minus infinity of positions that may not commit


def _steps(_: object, field: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{field.name}={value!r}: give an integer of at least 1, or None for one per position")


def _threshold(_: object, field: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{field.name}={value!r}: give a probability (1 or more never passes)")


def _one_of(*allowed: str) -> Callable[[object, attrs.Attribute[str], str], None]:
    def check(_: object, field: attrs.Attribute[str], value: str) -> None:
        if value not in allowed:
            raise ConfigError(f"{field.name}={value!r}: choose one of {', '.join(allowed)}")

    return check


def schedule(block_length: int, steps: int | None) -> tuple[int, ...]:
    """Commits per step: `block_length` shared out over `steps`, the remainder to the first steps.

    More steps than positions leave zeros at the end. Source: SDAR and LLaDA, `get_num_transfer_tokens`.
    """
    steps = block_length if steps is None else steps
    share, rest = divmod(block_length, steps)
    return tuple(share + (i < rest) for i in range(steps))


def _granted(step: int, block_length: int, steps: int | None) -> int:
    """How many positions the schedule grants a step; at least one, also beyond its end."""
    table = schedule(block_length, steps)
    return max(table[min(step, len(table) - 1)], 1)


def _quota(state: State, steps: int | None) -> Tensor:
    """How many positions the schedule grants each state's step `[...]`."""
    if steps is None:
        return torch.ones_like(state.step)
    counts = [_granted(i, state.block_length, steps) for i in range(max(steps, 1))]
    return torch.tensor(counts, device=state.step.device)[state.step.clamp(max=steps - 1)]


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


_KINDS = ("raw", "tempered", "filtered")


@attrs.frozen
class Static:
    """The most confident positions commit, a fixed number per step (low-confidence remasking).

    Attributes:
        steps_per_block: denoising steps that fill a block; None commits one position per step.
        confidence: the probability of the drawn token under the raw (temperature 1), tempered, or
            tempered and filtered distribution.

    Source: SDAR `generate.py`, `low_confidence_static`; LLaDA `generate.py`, `low_confidence`.
    """

    steps_per_block: int | None = attrs.field(default=None, validator=_steps)
    confidence: Confidence = attrs.field(default="raw", validator=_one_of(*_KINDS))

    by_confidence = True

    @property
    def uses_step(self) -> bool:
        """Whether a schedule counts the steps."""
        return self.steps_per_block is not None

    def quota(self, step: int, *, block_length: int) -> int:
        """Positions committed at `step`, as long as so many are open."""
        return _granted(step, block_length, self.steps_per_block)

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """The most confident active positions, as many as the schedule grants."""
        tokens = sampler.draw(logprobs, state=state)
        confidence = _confidence(logprobs, tokens, self.confidence)
        positions = _leading(confidence, _quota(state, self.steps_per_block)) & logprobs.index
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

    Source: SDAR `generate.py`, `low_confidence_dynamic`; Fast-dLLM `llada/generate.py`.
    """

    threshold: float = attrs.field(default=0.9, validator=_threshold)
    comparator: Literal[">", ">="] = attrs.field(default=">", validator=_one_of(">", ">="))
    fallback: Literal["quota", "best"] = attrs.field(default="quota", validator=_one_of("quota", "best"))
    steps_per_block: int | None = attrs.field(default=None, validator=_steps)
    confidence: Confidence = attrs.field(default="raw", validator=_one_of(*_KINDS))

    @property
    def uses_step(self) -> bool:
        """Whether a schedule counts the steps."""
        return self.fallback == "quota" and self.steps_per_block is not None

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """The active positions above the threshold, or what the fallback says."""
        tokens = sampler.draw(logprobs, state=state)
        confidence = _confidence(logprobs, tokens, self.confidence)
        probability = confidence.exp()
        passed = probability > self.threshold if self.comparator == ">" else probability >= self.threshold
        passed = passed & logprobs.index
        if self.fallback == "best":
            positions = passed | _leading(confidence, torch.ones_like(state.step))
        else:
            quota = _quota(state, self.steps_per_block)
            enough = passed.sum(-1) >= quota
            positions = torch.where(enough.unsqueeze(-1), passed, _leading(confidence, quota))
        return Commit(positions & logprobs.index, scatter(tokens, logprobs.index, 0))


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
