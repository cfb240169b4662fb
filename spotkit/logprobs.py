"""The one place where logits become log-probabilities."""

from __future__ import annotations

import math
from typing import Literal

import attrs
import torch
from torch import Tensor

from spotkit.errors import ConfigError
from spotkit.types import LogProbs, TargetSpec

Confidence = Literal["raw", "tempered", "filtered"]

_COLDEST, _HOTTEST = 1e-30, 1e30  # float32 cannot divide by what lies beyond, and nothing changes there any more


def _temperature(_: object, field: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{field.name}={value!r}: give a number of at least 0 (0 decodes greedily)")


def _top_k(_: object, field: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{field.name}={value!r}: give an integer of at least 0 (0 keeps all tokens)")


def _top_p(_: object, field: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ConfigError(f"{field.name}={value!r}: give a number in (0, 1] (1 keeps all tokens)")


@attrs.frozen
class Sampling:
    """How tokens are drawn: temperature first, then top-k, then top-p.

    At temperature 0 the token of highest probability is taken, and the filters change nothing.
    """

    temperature: float = attrs.field(default=0.0, validator=_temperature)
    top_k: int = attrs.field(default=0, validator=_top_k)
    top_p: float = attrs.field(default=1.0, validator=_top_p)

    @property
    def greedy(self) -> bool:
        """Whether no noise is used."""
        return self.temperature == 0

    @property
    def divisor(self) -> float:
        """The temperature, kept to what float32 can divide by."""
        return min(max(self.temperature, _COLDEST), _HOTTEST)

    @property
    def filtered(self) -> bool:
        """Whether top-k or top-p can remove a token."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)


def normalise(logits: Tensor, spec: TargetSpec) -> Tensor:
    """Log-probs at temperature 1 `[..., V]`, float32 or wider, of `logits` `[..., V]`.

    The mask id and ids unknown to the tokenizer get minus infinity before anything is normalised. A row
    with NaN or plus infinity, or without a finite logit, comes out as NaN throughout.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    ids = torch.arange(spec.vocab_size, device=logits.device)
    never = ids == spec.mask_id
    if spec.token_limit is not None:
        never = never | (ids >= spec.token_limit)
    wide = wide.masked_fill(never, -math.inf)
    broken = ~wide.amax(-1, keepdim=True).isfinite()
    return log_softmax(wide).masked_fill(broken, math.nan)


def log_softmax(scores: Tensor) -> Tensor:
    """Log-softmax over the last dimension whose best entry is right to its last digits, however close to 0.

    A rule orders positions by the log-prob of their best token. Where that is nearly 1, the usual difference
    of two large numbers leaves only rounding noise, which other kernels and shapes round otherwise; here the
    log-prob comes from the mass of all *other* entries, `-log1p(mass)`.
    """
    best = scores.max(-1, keepdim=True)
    others = scores.scatter(-1, best.indices, -math.inf)
    second = others.max(-1, keepdim=True)
    # By torch's own log_softmax, not logsumexp: of a single wide row that sums in another order than of many,
    # and a state must get the same bits whatever it is scored with.
    share = others.log_softmax(-1).gather(-1, second.indices)
    mass = torch.where(second.values > -math.inf, second.values - share - best.values, -math.inf)
    return scores - best.values - mass.exp().log1p()


def form(logits: Tensor, *, index: Tensor, sampling: Sampling, spec: TargetSpec) -> LogProbs:
    """Log-probs of the positions at `index`, from their `logits` `[M, V]`."""
    raw = normalise(logits, spec)
    if sampling.greedy:
        return LogProbs(raw=raw, tempered=raw, law=raw, index=index)
    tempered = raw if sampling.temperature == 1 else temper(raw, sampling)
    law = _filter(tempered, sampling) if sampling.filtered else tempered
    return LogProbs(raw=raw, tempered=tempered, law=law, index=index)


def temper(logprobs: Tensor, sampling: Sampling) -> Tensor:
    """Log-probs at the temperature, from those at temperature 1; the best token stays finite at any temperature."""
    gaps = logprobs - logprobs.amax(-1, keepdim=True)
    return log_softmax(gaps / sampling.divisor)


def _filter(logprobs: Tensor, sampling: Sampling) -> Tensor:
    """Top-k, then top-p over what is left; among equals the lower token id stays."""
    ordered, ids = logprobs.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k > 0:
        keep[..., sampling.top_k :] = False
    if sampling.top_p < 1:
        mass = ordered.masked_fill(~keep, -math.inf).softmax(-1)
        keep = keep & (mass.cumsum(-1) - mass < sampling.top_p)
        keep[..., 0] = True  # whatever rounding says
    kept = torch.zeros_like(keep).scatter(-1, ids, keep)
    return log_softmax(logprobs.masked_fill(~kept, -math.inf))


def scatter(values: Tensor, index: Tensor, fill: float | int) -> Tensor:
    """Spreads `M` values to the true entries of `index` `[..., N]`, `fill` elsewhere."""
    return torch.full(index.shape, fill, dtype=values.dtype, device=values.device).masked_scatter(index, values)


def narrow(logprobs: LogProbs, where: Tensor) -> LogProbs:
    """The log-probs of the positions that are also true in `where` `[..., N]`."""
    rows = where.expand_as(logprobs.index)[logprobs.index]
    index = logprobs.index & where
    return LogProbs(logprobs.raw[rows], logprobs.tempered[rows], logprobs.law[rows], index)
