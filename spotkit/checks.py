"""What parts may return: checked where it comes back, so that a fault names the part that made it.

Only types, shapes and devices are looked at here, which never waits for a device; `walk.py` has the values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spotkit.errors import DraftError, PartError
from spotkit.types import Commit, Draft, State


def tensor(
    name: str, value: object, *, like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> None:
    """Checks that `value` is a dense tensor of that shape and type (None: any floating type) on `like`'s device.

    Raises:
        PartError: it is something else.
    """
    wanted = f"{dtype or 'floating-point'} {list(shape)} on {like.device}"
    if not isinstance(value, Tensor):
        raise PartError(f"{name}: expected a tensor, {wanted}, got {type(value).__name__}")
    right_type = value.is_floating_point() if dtype is None else value.dtype == dtype
    if value.layout != torch.strided or not right_type or tuple(value.shape) != shape or value.device != like.device:
        layout = "" if value.layout == torch.strided else f"{value.layout} "
        raise PartError(f"{name}: expected {wanted}, got {layout}{value.dtype} {list(value.shape)} on {value.device}")


def pair(name: str, value: object, *, of: str) -> tuple[Any, Any]:
    """`value` as the pair it has to be.

    Raises:
        PartError: it is something else.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        got = f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
        raise PartError(f"{name}: must return the pair ({of}), got {got}")
    return value


def scored(value: object, *, canvases: Tensor, vocab_size: int) -> tuple[Tensor, Any]:
    """What `Target.score` returned for `canvases` `[B, K, N]`: logits `[B, K, N, V]` and a context.

    Raises:
        PartError: something else.
    """
    logits, context = pair("target.score", value, of="logits, context")
    tensor("target.score logits", logits, like=canvases, shape=(*canvases.shape, vocab_size))
    return logits, context


def admitted(value: object, *, canvases: Tensor) -> Tensor:
    """What `Target.admits` returned for `canvases` `[B, K, N]`: bool `[B, K]`.

    Raises:
        PartError: something else.
    """
    tensor("target.admits", value, like=canvases, shape=tuple(canvases.shape[:2]), dtype=torch.bool)
    assert isinstance(value, Tensor)
    return value


def committed(value: object, *, state: State) -> Commit:
    """What `DecodingRule.commit` returned for `state` `[..., N]`.

    Raises:
        PartError: something else than a commit of that shape.
    """
    if not isinstance(value, Commit):
        raise PartError(f"rule.commit: must return a Commit, got {type(value).__name__}")
    shape = tuple(state.canvas.shape)
    tensor("rule.commit positions", value.positions, like=state.canvas, shape=shape, dtype=torch.bool)
    tensor("rule.commit tokens", value.tokens, like=state.canvas, shape=shape, dtype=torch.int64)
    return value


def linked(value: object, *, candidates: State) -> Tensor:
    """What `AcceptanceRule.accept` returned for `candidates` `[B, K]`.

    Raises:
        PartError: something else than links `[B, K]`.
    """
    tensor("acceptance.accept", value, like=candidates.step, shape=tuple(candidates.step.shape), dtype=torch.int64)
    assert isinstance(value, Tensor)
    return value


def proposed(value: object, *, state: State) -> tuple[Draft | None, Any]:
    """What `Drafter.propose` returned for `state` `[B]`: a draft or None, and what it carries on.

    Raises:
        DraftError: something else.
    """
    try:
        draft, carry = pair("drafter.propose", value, of="draft or None, carry")
        if draft is not None:
            _draft(draft, state)
    except PartError as error:
        raise DraftError(str(error)) from None
    return draft, carry


def _draft(draft: object, state: State) -> None:
    if not isinstance(draft, Draft) or not isinstance(draft.states, State):
        got = type(draft).__name__ if not isinstance(draft, Draft) else f"states of {type(draft.states).__name__}"
        raise PartError(f"draft: expected a Draft of a State, or None, got {got}")
    rows, width = state.canvas.shape
    count = draft.valid.shape[-1] if isinstance(draft.valid, Tensor) and draft.valid.ndim else 0
    tensor("draft.valid", draft.valid, like=state.canvas, shape=(rows, count), dtype=torch.bool)
    states = draft.states
    tensor("draft.states.canvas", states.canvas, like=state.canvas, shape=(rows, count, width), dtype=torch.int64)
    tensor(
        "draft.states.committed", states.committed, like=state.canvas, shape=(rows, count, width), dtype=torch.bool
    )
    tensor("draft.states.step", states.step, like=state.canvas, shape=(rows, count), dtype=torch.int64)
    if states.block_length != state.block_length:
        raise PartError(
            f"draft.states.block_length={states.block_length!r}: must be {state.block_length}, that of the state"
        )
