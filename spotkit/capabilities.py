"""Optional abilities of parts, each a protocol of its own; a part that lacks one is used without it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from spotkit.logprobs import Confidence


@runtime_checkable
class Scheduled(Protocol):
    """A decoding rule whose number of commits follows from the step alone."""

    by_confidence: bool
    """True if the most confident positions commit, False if the leftmost do."""

    def quota(self, step: int, *, block_length: int) -> int:
        """Positions committed at `step`, as long as so many are open."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A target that takes canvases on a device of its choice; without it they are on the CPU."""

    @property
    def device(self) -> torch.device:
        """Where canvases go in and logits come out."""
        ...


@runtime_checkable
class Selective(Protocol):
    """A target that cannot score every state beside the current one; drafts are cut down to those that it can.

    A target that wraps another has to hand this on (`admitted_by`), or drafts would change its text.
    """

    def admits(self, canvases: Tensor, *, context: Any) -> Tensor:
        """Which `canvases` `[B, K, N]` can be scored in one pass, bool `[B, K]`; the first of a row always can."""
        ...


@runtime_checkable
class Tokenized(Protocol):
    """A target that comes with its tokenizer."""

    tokenizer: Any


@runtime_checkable
class Confident(Protocol):
    """A decoding rule that ranks positions by the probability of the drawn token."""

    confidence: Confidence
    """Which probability."""


def admitted_by(target: object, canvases: Tensor, *, context: Any) -> Tensor:
    """Which `canvases` `[B, K, N]` a target can score in one pass, bool `[B, K]`: all unless it is selective."""
    if isinstance(target, Selective):
        return target.admits(canvases, context=context)
    return torch.ones(canvases.shape[:2], dtype=torch.bool, device=canvases.device)


def device_of(target: object) -> torch.device:
    """Where a target takes its canvases."""
    return target.device if isinstance(target, Placed) else torch.device("cpu")
