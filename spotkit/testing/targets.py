"""Toy targets: no weights, float64, logits a pure function of what is scored."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from spotkit.tape import _mix, _shift
from spotkit.types import TargetSpec


@attrs.frozen
class TableTarget:
    """A target whose logits are a hash of context and canvas.

    Attributes:
        spec: what it pretends to be.
        seed: another seed is another table.
        levels: number of distinct logit values; few make ties abound, 0 means no quantisation.
        scale: logits lie in `[0, scale]`.
        smooth: share of the hash that depends on position and token alone, in [0, 1]: with 0 nothing said
            about one state tells anything about the next, with more a drafter has something to go by.

    In block-causal mode a position depends on the context, the blocks before it and its own block.
    """

    spec: TargetSpec
    seed: int = 0
    levels: int = 0
    scale: float = 4.0
    smooth: float = 0.5

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The context is the ids themselves."""
        return tuple(tuple(p.tolist()) for p in prompts)

    def score(
        self, canvases: Tensor, *, context: tuple[tuple[int, ...], ...]
    ) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        """Hashes every canvas."""
        rows, count, width = canvases.shape
        heads = torch.tensor([self._fold(ids) for ids in context])
        starts = torch.tensor([len(ids) for ids in context])
        digest = heads.view(rows, 1).expand(rows, count)
        block = self.spec.block_length if self.spec.attention == "block_causal" else width
        parts = []
        for begin in range(0, width, block):
            for i in range(begin, min(begin + block, width)):
                digest = self._chain(digest, canvases[:, :, i], starts.view(rows, 1) + i)
            parts.append(digest.unsqueeze(-1).expand(rows, count, min(block, width - begin)))
        places = starts.view(rows, 1) + torch.arange(width)
        own = _mix(_mix(places + 1000003 * self.seed).unsqueeze(-1) + torch.arange(self.spec.vocab_size) * 977)
        whole = _mix(torch.cat(parts, -1).unsqueeze(-1) * 131 + own.unsqueeze(1))
        value = self.smooth * self._unit(own).unsqueeze(1) + (1 - self.smooth) * self._unit(whole)
        if self.levels:
            value = (value * self.levels).floor() / self.levels
        return value * self.scale, context

    def extend(
        self, context: tuple[tuple[int, ...], ...], *, block: Tensor, rows: Tensor
    ) -> tuple[tuple[int, ...], ...]:
        """Appends the block's ids."""
        pairs = zip(context, block.tolist(), rows.tolist(), strict=True)
        return tuple(ids + tuple(new) if grow else ids for ids, new, grow in pairs)

    def _fold(self, ids: Sequence[int]) -> int:
        digest = torch.tensor(self.seed)
        for position, token in enumerate(ids):
            digest = self._chain(digest, torch.tensor(token), torch.tensor(position))
        return int(digest)

    @staticmethod
    def _chain(digest: Tensor, token: Tensor, position: Tensor) -> Tensor:
        return _mix(digest * 31 + token + 1000003 * position)

    @staticmethod
    def _unit(bits: Tensor) -> Tensor:
        return _shift(bits, 11).double() * 2.0**-53
