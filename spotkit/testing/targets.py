"""Toy targets: no weights, float64, logits a pure function of what is scored."""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from spotkit.capabilities import admitted_by
from spotkit.protocols import Target
from spotkit.tape import _mix, _shift
from spotkit.types import TargetSpec


@attrs.frozen
class TableTarget:
    """A target whose logits are a hash of context and canvas.

    In block-causal mode a position depends on the context, the blocks before it and its own block.

    Attributes:
        spec: what it pretends to be.
        seed: another seed is another table.
        levels: number of distinct logit values; few make ties abound, 0 means no quantisation.
        scale: logits lie in `[0, scale]`.
        smooth: share of the hash that depends on position and token alone, in [0, 1]: with 0 nothing said
            about one state tells anything about the next, with more a drafter has something to go by.
        forbidden_on_top: gives the mask id, and ids that the tokenizer does not know, the highest logits.
    """

    spec: TargetSpec
    seed: int = 0
    levels: int = 0
    scale: float = 4.0
    smooth: float = 0.5
    forbidden_on_top: bool = False

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The context is the ids themselves."""
        return tuple(tuple(p.tolist()) for p in prompts)

    def score(
        self, canvases: Tensor, *, context: tuple[tuple[int, ...], ...]
    ) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        """Hashes every canvas."""
        rows, count, width = canvases.shape
        heads = torch.tensor([_fold(self.seed, ids) for ids in context])
        starts = torch.tensor([len(ids) for ids in context])
        digest = heads.view(rows, 1).expand(rows, count)
        block = self.spec.block_length if self.spec.attention == "block_causal" else width
        parts = []
        for begin in range(0, width, block):
            for i in range(begin, min(begin + block, width)):
                digest = _chain(digest, canvases[:, :, i], starts.view(rows, 1) + i)
            parts.append(digest.unsqueeze(-1).expand(rows, count, min(block, width - begin)))
        places = starts.view(rows, 1) + torch.arange(width)
        own = _mix(_mix(places + 1000003 * self.seed).unsqueeze(-1) + torch.arange(self.spec.vocab_size) * 977)
        whole = _mix(torch.cat(parts, -1).unsqueeze(-1) * 131 + own.unsqueeze(1))
        value = self.smooth * _unit(own).unsqueeze(1) + (1 - self.smooth) * _unit(whole)
        if self.levels:
            value = (value * self.levels).floor() / self.levels
        logits = value * self.scale
        if self.forbidden_on_top:
            limit = self.spec.vocab_size if self.spec.token_limit is None else self.spec.token_limit
            ids = torch.arange(self.spec.vocab_size)
            logits = torch.where((ids == self.spec.mask_id) | (ids >= limit), self.scale + 10.0, logits)
        return logits, context

    def extend(
        self, context: tuple[tuple[int, ...], ...], *, block: Tensor, rows: Tensor
    ) -> tuple[tuple[int, ...], ...]:
        """Appends the block's ids."""
        pairs = zip(context, block.tolist(), rows.tolist(), strict=True)
        return tuple(ids + tuple(new) if grow else ids for ids, new, grow in pairs)


@functools.lru_cache(maxsize=4096)
def _fold(seed: int, ids: tuple[int, ...]) -> int:
    digest = torch.tensor(seed)
    for position, token in enumerate(ids):
        digest = _chain(digest, torch.tensor(token), torch.tensor(position))
    return int(digest)


def _chain(digest: Tensor, token: Tensor, position: Tensor) -> Tensor:
    return _mix(digest * 31 + token + 1000003 * position)


def _unit(bits: Tensor) -> Tensor:
    return _shift(bits, 11).double() * 2.0**-53


@attrs.frozen
class Call:
    """One call that a `SpyTarget` has seen."""

    name: str
    """`"open"`, `"score"` or `"extend"`."""
    shape: tuple[int, ...]
    """Of the canvases or the block; of `open`, the number of ids per row."""
    dtype: torch.dtype | None = None


@attrs.frozen
class SpyTarget:
    """Another target, with a record of what it was asked.

    Attributes:
        inner: the target that answers.
        calls: every call so far, in order.
    """

    inner: Target
    calls: list[Call] = attrs.field(factory=list)

    @property
    def spec(self) -> TargetSpec:
        """The inner target's."""
        return self.inner.spec

    @property
    def passes(self) -> int:
        """Calls of `score` so far."""
        return sum(call.name == "score" for call in self.calls)

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> Any:
        """Records the lengths of the heads."""
        self.calls.append(Call("open", tuple(len(p) for p in prompts)))
        return self.inner.open(prompts, max_new_tokens=max_new_tokens)

    def admits(self, canvases: Tensor, *, context: Any) -> Tensor:
        """What the inner target admits."""
        return admitted_by(self.inner, canvases, context=context)

    def score(self, canvases: Tensor, *, context: Any) -> tuple[Tensor, Any]:
        """Records the shape of the canvases."""
        self.calls.append(Call("score", tuple(canvases.shape), canvases.dtype))
        return self.inner.score(canvases, context=context)

    def extend(self, context: Any, *, block: Tensor, rows: Tensor) -> Any:
        """Records the shape of the blocks."""
        self.calls.append(Call("extend", tuple(block.shape), block.dtype))
        return self.inner.extend(context, block=block, rows=rows)


@attrs.frozen
class PoisonedTarget:
    """Another target that fails on some canvases: its logits hold a value there that no model should give.

    Attributes:
        inner: the target that answers otherwise.
        canvases: the canvases it fails on, as ids (whatever says of a tuple whether it is in it).
        value: what it answers there.
        token: the only id that gets `value`; None gives it to all.
    """

    inner: Target
    canvases: Container[tuple[int, ...]]
    value: float = math.nan
    token: int | None = None

    @property
    def spec(self) -> TargetSpec:
        """The inner target's."""
        return self.inner.spec

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> Any:
        """As the inner target."""
        return self.inner.open(prompts, max_new_tokens=max_new_tokens)

    def admits(self, canvases: Tensor, *, context: Any) -> Tensor:
        """What the inner target admits."""
        return admitted_by(self.inner, canvases, context=context)

    def score(self, canvases: Tensor, *, context: Any) -> tuple[Tensor, Any]:
        """The inner target's logits, spoiled where the canvas is one of `canvases`."""
        logits, context = self.inner.score(canvases, context=context)
        bad = torch.tensor([[tuple(c) in self.canvases for c in row] for row in canvases.tolist()])
        ids = torch.arange(logits.shape[-1])
        hit = bad.view(*bad.shape, 1, 1) & ((ids == self.token) | (self.token is None))
        return torch.where(hit, self.value, logits), context

    def extend(self, context: Any, *, block: Tensor, rows: Tensor) -> Any:
        """As the inner target."""
        return self.inner.extend(context, block=block, rows=rows)
