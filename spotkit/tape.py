"""The tape: randomness as a pure function of where it is used.

Noise depends on (seed, row id, absolute position, step in block, token) and on nothing else: not on the
order of calls, the batch, the number of passes or torch's global generator. So drafter and target see the
same noise, and a step draws the same tokens whichever pass scored it.
"""

from __future__ import annotations

import math
from typing import Literal

import attrs
import torch
from torch import Tensor

from spotkit.errors import ConfigError

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014); int64 arithmetic wraps."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _seed(_: object, field: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ConfigError(f"{field.name}={value!r}: give an integer from 0 to 2**63 - 1")


def _keyed_by(_: object, field: attrs.Attribute[str], value: str) -> None:
    if value not in ("step", "position"):
        raise ConfigError(f"{field.name}={value!r}: choose step or position")


@attrs.frozen
class Tape:
    """Counter-based Gumbel noise.

    Attributes:
        seed: from 0 to 2**63 - 1.
        keyed_by: `"step"` draws fresh noise at every denoising step, as the official samplers do.
            `"position"` freezes a position's noise over steps: a second sampler, consistent with itself
            but of another law.
    """

    seed: int = attrs.field(default=0, validator=_seed)
    keyed_by: Literal["step", "position"] = attrs.field(default="step", validator=_keyed_by)

    def keys(self, *, row: Tensor, position: Tensor, step: Tensor) -> Tensor:
        """One 64-bit key per place; the three tensors broadcast."""
        key = _mix(torch.as_tensor(self.seed, device=row.device) + _GOLDEN)
        key = _mix(key + row * _GOLDEN)
        key = _mix(key + position * _GOLDEN)
        step = step if self.keyed_by == "step" else torch.full_like(step, -1)
        return _mix(key + (step + 1) * _GOLDEN)

    def gumbel(self, keys: Tensor, tokens: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard Gumbel noise of `tokens` under `keys`; the two broadcast.

        Right in the upper tail at any vocabulary: the exponential variate is formed from a 53-bit uniform
        near zero, where floats are dense, so its relative error is that of `dtype` (float32 or wider).
        """
        bits = _shift(_mix(keys + (tokens + 1) * _GOLDEN), 11)
        largest = 1.0 - torch.finfo(dtype).eps
        uniform = ((bits.to(dtype) + 0.5) * 2.0**-53).clamp_(max=largest)
        return uniform.neg_().log1p_().neg_().log_().neg_()


LOWEST_NOISE = -math.log(-math.log(torch.finfo(torch.float32).eps))
"""No float32 noise lies below this (natural units)."""
