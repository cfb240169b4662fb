"""Acceptance rules: which scored candidate a step leads to."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from spotkit.types import Guarantee, State


def equal_states(left: State, right: State, *, with_step: bool) -> Tensor:
    """Which states of `left` `[B, K]` equal which of `right` `[B, J]`, bool `[B, K, J]`.

    Equal means: the same positions committed, with the same tokens, and (if `with_step`) after the same
    number of steps. What stands at open positions does not count.
    """
    a, b = (torch.where(s.committed, s.canvas, -1) for s in (left, right))
    same = (a.unsqueeze(2) == b.unsqueeze(1)).all(-1)
    if with_step:
        same = same & (left.step.unsqueeze(2) == right.step.unsqueeze(1))
    return same


@attrs.frozen
class StateEquality:
    """A candidate is accepted when it equals the state the target itself moves to.

    Every step taken is then the plain decoder's own, whatever was drafted and at any temperature.
    Source: Spiffy (arXiv 2509.18085), Algorithm 1; SPOT (arXiv 2610.22543).
    """

    guarantee = Guarantee.EXACT_PATH

    def accept(self, candidates: State, *, successors: State, valid: Tensor, with_step: bool) -> Tensor:
        """The index of the candidate that equals each successor, or -1."""
        match = equal_states(successors, candidates, with_step=with_step) & valid.unsqueeze(1)
        first = match.long().argmax(-1)
        return torch.where(match.any(-1) & valid, first, -1)
