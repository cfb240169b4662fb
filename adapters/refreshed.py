"""Bidirectional targets with an approximate cache, refreshed at every block's start (Fast-dLLM).

At a block's start one full pass over the text so far and the masks after it leaves its keys and values behind.
The passes inside the block then run the block alone ("dual"), or the block with the masks after it ("prefix"),
and read the keys and values of everything else from there. The decoder with this cache is a target of its own:
its logits are a pure function of context and canvas, and drafting is exact relative to it.

Source: Fast-dLLM's `generate_with_prefix_cache` and `generate_with_dual_cache`.

Shapes: `B` rows, `K` states per row, `L` block length, `T` positions of prompt and answer (the most of any row),
`W` positions run per state, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spotkit.errors import ConfigError

from .base import Native, check_rows, shifted
from .bidirectional import check_heads

Kept = Literal["prefix", "dual"]
Layers = dict[int, tuple[Tensor, Tensor]]


@attrs.frozen(eq=False)
class Refresh:
    """The context: all ids, and keys and values of the last full pass.

    Attributes:
        ids: prompt and finished blocks, then masks up to the answer's end, then padding `[B, T]`.
        lengths: prompt and finished blocks `[B]`.
        totals: with the masks `[B]`.
        fresh: whether the row's keys and values are those of a full pass over `ids` `[B]`.
        layers: keys and values `[B, H, T, D]` of every layer.
        before: logits at the position before the block, which a model with shift reads `[B, V]`.
    """

    ids: Tensor
    lengths: Tensor
    totals: Tensor
    fresh: Tensor
    layers: Layers = attrs.field(factory=dict)
    before: Tensor | None = None


@attrs.frozen(eq=False)
class Refreshed(Native):
    """A bidirectional target with an approximate cache."""

    @property
    def kept(self) -> Kept:
        """What is read from the cache: "prefix", everything before the block, or "dual", also what is after it."""
        return "prefix" if self.spec.variant == "prefix" else "dual"

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> Refresh:
        """A context in which nothing is computed yet.

        Raises:
            ConfigError: an empty prompt for a model that scores a token at the position before it.
        """
        check_heads(prompts, shift=self.shift)
        length = self.spec.block_length
        answer = -(-max_new_tokens // length) * length
        mask = torch.full((answer,), self.spec.mask_id, device=self.device)
        ids = [torch.cat([p.to(self.device, torch.int64), mask]) for p in prompts]
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        return Refresh(
            ids=pad_sequence(ids, batch_first=True, padding_value=self.spec.pad_id),
            lengths=lengths,
            totals=lengths + answer,
            fresh=torch.zeros_like(lengths, dtype=torch.bool),
        )

    def extend(self, context: Refresh, *, block: Tensor, rows: Tensor) -> Refresh:
        """Writes the block behind the text; the next pass refreshes the keys and values of these rows."""
        rows = rows.to(self.device)
        at = context.lengths.unsqueeze(1) + torch.arange(block.shape[1], device=self.device)
        at = at.clamp(max=context.ids.shape[1] - 1)
        written = context.ids.scatter(1, at, block.to(self.device))
        return attrs.evolve(
            context,
            ids=torch.where(rows.unsqueeze(1), written, context.ids),
            lengths=context.lengths + rows * block.shape[1],
            fresh=context.fresh & ~rows,
        )

    @torch.inference_mode()
    def score(self, canvases: Tensor, *, context: Refresh) -> tuple[Tensor, Refresh]:
        """One pass: a full one of rows at a block's start, and in the same call all canvases.

        Logits `[B, K, L, V]` in the model's dtype.

        Raises:
            ConfigError: canvases for another number of rows than the context has, or of more than one block.
        """
        rows, count, width = canvases.shape
        check_rows(canvases, rows=len(context.ids))
        if width != self.spec.block_length:
            raise ConfigError(
                f"canvases: {width} positions; with cache={self.kept!r} a canvas is one block of "
                f"{self.spec.block_length}"
            )
        stale = ~context.fresh
        full = context.ids.shape[1] if bool(stale.any()) else 0
        tree = self.layout == "tree"
        plan = _Plan(context, full=full, width=self._width(context), copies=count if tree else 1, kept=self.kept)
        ids = torch.cat([context.ids[:, :full].unsqueeze(1), plan.tail.unsqueeze(1)], 2).expand(-1, count, -1)
        ids = torch.cat([ids[..., :full], canvases.to(self.device), ids[..., full + width :]], -1)
        mask, positions = plan.mask(), plan.positions()
        if tree:
            ids = torch.cat([ids[:, 0, :full], ids[..., full:].flatten(1)], 1)
        else:
            ids = ids.flatten(0, 1)
            mask, positions = (t.repeat_interleave(count, 0) for t in (mask, positions))
        cache = _Reader(context.layers, full=full, repeat=1 if tree else count)
        ends = sorted(set((context.lengths - 1).tolist())) if full and self.shift else []
        keep = torch.cat([torch.tensor(ends, dtype=torch.long, device=self.device), plan.scored(width)])
        logits = self.forward(ids, mask=mask, positions=positions, keep=keep, cache=cache)
        states = logits[:, len(ends) :].reshape(rows, count, width, -1)
        after = attrs.evolve(context, fresh=context.fresh | stale, layers=cache.merged(context.fresh))
        if not self.shift:
            return states, after
        before = self._before(context, logits[:: 1 if tree else count], ends)
        return shifted(states, before), attrs.evolve(after, before=before)

    def _before(self, context: Refresh, logits: Tensor, ends: list[int]) -> Tensor:
        """Logits at the position before each row's block `[B, V]`: those of this pass where it refreshed the row."""
        old = context.before
        if not ends:
            assert old is not None
            return old
        seen = torch.stack([logits[row, ends.index(n - 1)] for row, n in enumerate(context.lengths.tolist())])
        return seen if old is None else torch.where(context.fresh.unsqueeze(1), old, seen)

    def _width(self, context: Refresh) -> int:
        """Positions run per state."""
        if self.kept == "dual":
            return self.spec.block_length
        return int((context.totals - context.lengths).max())


@attrs.define(eq=False)
class _Reader:
    """The cache argument of one pass: gives the kept keys and values out, and takes those of the full part."""

    layers: Layers
    full: int
    repeat: int
    written: Layers = attrs.field(factory=dict)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """What transformers' attention layers call: new keys and values in, all of them out."""
        new = (key_states, value_states)
        if self.full:
            self.written[layer_idx] = tuple(t[:: self.repeat, :, : self.full].clone() for t in new)  # type: ignore[assignment]
        if layer_idx not in self.layers:
            return new
        old = self.layers[layer_idx]
        keys, values = (torch.cat([o.repeat_interleave(self.repeat, 0), n], 2) for o, n in zip(old, new, strict=True))
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots before this pass."""
        return self.layers[layer_idx][0].shape[2] if self.layers else 0

    def merged(self, fresh: Tensor) -> Layers:
        """Keys and values after the pass: the old ones where `fresh` `[B]`."""
        if not self.layers:
            return self.written
        result = dict(self.layers)
        for layer, pair in self.written.items():
            keep = fresh.view(-1, 1, 1, 1).to(pair[0].device)
            old = self.layers[layer]
            result[layer] = (torch.where(keep, old[0], pair[0]), torch.where(keep, old[1], pair[1]))
        return result


@attrs.frozen(eq=False)
class _Plan:
    """Who sees whom in one pass: keys are `[kept T; full T; copies x W]`, queries the latter two."""

    context: Refresh
    full: int
    width: int
    copies: int
    kept: Kept

    @property
    def tail(self) -> Tensor:
        """What every state runs from the block's start on, as the context has it `[B, W]`."""
        at = self._places().clamp(max=self.context.ids.shape[1] - 1)
        return self.context.ids.gather(1, at)

    def scored(self, width: int) -> Tensor:
        """Which queries are the first `width` positions of each state `[copies * width]`."""
        device = self.context.ids.device
        begins = self.full + self.width * torch.arange(self.copies, device=device)
        return (begins.unsqueeze(1) + torch.arange(width, device=device)).flatten()

    def positions(self) -> Tensor:
        """Absolute positions of the queries `[B, full + copies * W]`."""
        whole = torch.arange(self.full, device=self.context.ids.device).expand(len(self.context.ids), -1)
        return torch.cat([whole, self._places().repeat(1, self.copies)], 1)

    def mask(self) -> Tensor:
        """True where a query sees a key, `[B, 1, queries, keys]`."""
        context, full, width = self.context, self.full, self.width
        device, rows = context.ids.device, len(context.ids)
        slots = torch.arange(context.ids.shape[1], device=device)
        total = context.totals.unsqueeze(1)
        past = len(slots) if context.layers else 0
        states = self.copies * width
        mask = torch.zeros(rows, full + states, past + full + states, dtype=torch.bool, device=device)
        mask[:, :full, past : past + full] = (slots[:full] < total).unsqueeze(1)
        begin = context.lengths.unsqueeze(1)
        source = slots < begin
        if self.kept == "dual":
            source = source | ((slots >= begin + width) & (slots < total))
        fresh = context.fresh.unsqueeze(1)
        mask[:, full:, :past] = (source & fresh)[:, :past].unsqueeze(1)
        mask[:, full:, past : past + full] = (source & ~fresh)[:, :full].unsqueeze(1)
        real = self._places() < total
        itself = torch.eye(width, dtype=torch.bool, device=device)
        own = (real.unsqueeze(1) & real.unsqueeze(2)) | itself
        eye = torch.eye(self.copies, dtype=torch.bool, device=device)
        mask[:, full:, past + full :] = torch.kron(eye, own)
        return mask.unsqueeze(1)

    def _places(self) -> Tensor:
        """Absolute positions of what a state runs `[B, W]`."""
        return self.context.lengths.unsqueeze(1) + torch.arange(self.width, device=self.context.ids.device)
