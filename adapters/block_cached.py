"""Fast-dLLM v2's block cache: inside a block only one part is run, the rest of the block is read as it was.

A block is written in parts of `span` positions, one after the other. As long as the part's first position is open,
and in the block's first pass, the whole block is run and its keys and values are kept. After that the part is run
alone and reads the other parts from there. The decoder with this cache is a target of its own.

What a canvas reads depends on the last full pass before it. So beside the current state only states can be scored for
which that pass is certain: those in the same part, with its first position committed (see `admits`).

Source: Fast-dLLM's `v2/generation_functions.py`, `use_block_cache`.

Shapes: `B` rows, `K` states per row, `P` pending tokens, `L` block length, `S` span, `T` cached slots, `V`
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spotkit.errors import ConfigError

from .base import check_rows, shifted
from .block_causal import BlockCausal, Plan
from .cache import Context, Store

Layers = dict[int, tuple[Tensor, Tensor]]


@attrs.frozen(eq=False)
class Anchored(Context):
    """The context: finished blocks, and the last full pass over the open one."""

    full: Tensor | None = None
    """Which rows have had a full pass in their open block `[B]`; None before the first pass."""
    layers: Layers = attrs.field(factory=dict)
    """Keys and values of that pass `[B, H, L, D]`."""
    logits: Tensor | None = None
    """Logits of that pass `[B, L, V]`, at the positions they score."""


@attrs.frozen(eq=False)
class BlockCached(BlockCausal):
    """A block-causal target with shifted logits that runs one part of the block at a time.

    Attributes:
        span: positions per part.
    """

    span: int = attrs.field(default=8, kw_only=True)

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> Anchored:
        """See `BlockCausal.open`."""
        context = super().open(prompts, max_new_tokens=max_new_tokens)
        none = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        return Anchored(context.store, context.version, context.lengths, context.pending, full=none)

    @torch.inference_mode()
    def extend(self, context: Anchored, *, block: Tensor, rows: Tensor) -> Anchored:  # type: ignore[override]
        """See `BlockCausal.extend`; the new block has had no full pass."""
        context = super().extend(context, block=block, rows=rows)  # type: ignore[assignment]
        assert context.full is not None
        return attrs.evolve(context, full=context.full & ~rows.to(self.device))

    def admits(self, canvases: Tensor, *, context: Anchored) -> Tensor:
        """Which canvases `[B, K]` can be scored beside the first of their row.

        Those in the same part, with its first position committed; and the block's first position must have been
        committed before, as the pass that writes it keeps nothing.
        """
        canvases = canvases.to(self.device)
        part, begun = self._part(canvases)
        written = canvases[:, :1, 0] != self.spec.mask_id
        admitted = (part == part[:, :1]) & begun & written
        admitted[:, 0] = True
        return admitted

    @torch.inference_mode()
    def score(self, canvases: Tensor, *, context: Anchored) -> tuple[Tensor, Anchored]:  # type: ignore[override]
        """One pass; logits `[B, K, L, V]` in the model's dtype, outside the part those of the last full pass.

        Raises:
            ConfigError: canvases for another number of rows than the context has, or of more than one block.
        """
        rows, count, width = canvases.shape
        canvases = canvases.to(self.device)
        check_rows(canvases, len(context.lengths))
        if width != self.spec.block_length:
            raise ConfigError(
                f"canvases: {width} positions; with cache='block' a canvas is one block of {self.spec.block_length}"
            )
        assert context.full is not None
        part, begun = self._part(canvases[:, :1])
        anew = ~context.full | ~begun.squeeze(1)
        start = part.squeeze(1) * self.span
        plan = _Parts(
            context.lengths, context.waiting, count if self.layout == "tree" else 1, width, width,
            anew=anew, start=start, span=self.span, kept=bool(context.layers),
        )  # fmt: skip
        store = context.writable()
        logits, cache = self._run(canvases, context, store, plan)
        before = context.last_logits(*self._ended(logits, context, count))
        whole, parts = self._split(logits, plan, rows, count)
        kept = context.logits
        if plan.whole:
            fresh = shifted(whole.unsqueeze(1), before).squeeze(1)
            kept = fresh if kept is None else torch.where(anew.view(-1, 1, 1), fresh, kept)
        assert kept is not None
        after = context.after_pass(store)
        after = attrs.evolve(
            after,
            before=before,
            full=anew & (canvases[:, 0, 0] != self.spec.mask_id) | context.full & ~anew,
            layers=cache.merged(anew),
            logits=kept,
        )
        return self._joined(kept, parts, start, anew), after

    def _part(self, canvases: Tensor) -> tuple[Tensor, Tensor]:
        """The part that each canvas `[B, K, L]` is writing, and whether its first position is committed."""
        is_open = canvases == self.spec.mask_id
        part = is_open.long().argmax(-1) // self.span
        first = canvases.gather(-1, (part * self.span).unsqueeze(-1)).squeeze(-1)
        return part, first != self.spec.mask_id

    def _run(self, canvases: Tensor, context: Anchored, store: Store, plan: _Parts) -> tuple[Tensor, _PartCache]:
        """The model's call: logits of pending ends, whole blocks and parts, and the cache that it filled."""
        count, tree = canvases.shape[1], self.layout == "tree"
        pending = pad_sequence(list(context.pending), batch_first=True, padding_value=self.spec.pad_id)
        at = (plan.start.unsqueeze(1) + torch.arange(self.span, device=self.device)).clamp(max=canvases.shape[2] - 1)
        parts = canvases.gather(2, at.unsqueeze(1).expand(-1, count, -1))
        head = torch.cat([pending, canvases[:, 0, : plan.whole]], 1)
        mask, positions = plan.mask(self.device), plan.positions(self.device)
        if tree:
            ids = torch.cat([head, parts.flatten(1)], 1)
        else:
            head, mask, positions = (t.repeat_interleave(count, 0) for t in (head, mask, positions))
            ids = torch.cat([head, parts.flatten(0, 1)], 1)
        cache = _PartCache(
            store, context.filled, context.layers, pending.shape[1], plan.whole, repeat=1 if tree else count
        )
        ends = self._ends(context)
        keep = torch.cat([torch.tensor(ends, dtype=torch.long), torch.arange(pending.shape[1], ids.shape[1])])
        return self.forward(ids, mask=mask, positions=positions, cache=cache, keep=keep.to(self.device)), cache

    def _ends(self, context: Anchored) -> list[int]:
        return sorted({n - 1 for n in context.waiting if n})

    def _ended(self, logits: Tensor, context: Anchored, count: int) -> tuple[Tensor, list[int]]:
        """Logits at the ends of the pending ids `[B, E, V]`, and which ends these are."""
        ends = self._ends(context)
        mine = logits if self.layout == "tree" else logits[::count]
        return mine[:, : len(ends)], ends

    def _split(self, logits: Tensor, plan: _Parts, rows: int, count: int) -> tuple[Tensor, Tensor]:
        """Logits of whole blocks `[B, L or 0, V]` and of parts `[B, K, S, V]`."""
        tail = logits[:, -(plan.whole + plan.scored) :]
        whole = tail[:, : plan.whole] if self.layout == "tree" else tail[::count, : plan.whole]
        return whole, tail[:, plan.whole :].reshape(rows, count, self.span, -1)

    def _joined(self, kept: Tensor, parts: Tensor, start: Tensor, anew: Tensor) -> Tensor:
        """Logits `[B, K, L, V]`: of the last full pass, and inside the part those of the part.

        The part's first position keeps what it has: in the part it has none before it that scores it.
        """
        count, width = parts.shape[1], kept.shape[1]
        place = torch.arange(width, device=kept.device) - start.unsqueeze(1) - 1
        inside = (place >= 0) & (place < self.span - 1)
        index = place.clamp(0, self.span - 1).view(len(kept), 1, width, 1).expand(-1, count, -1, parts.shape[-1])
        own = inside.unsqueeze(1).repeat(1, count, 1)
        own[:, 0] &= ~anew.unsqueeze(1)  # the current state has been run whole
        return torch.where(own.unsqueeze(-1), parts.gather(2, index), kept.unsqueeze(1))


@attrs.frozen(eq=False)
class _PartCache:
    """The cache argument of one pass over `[pending; whole block; parts]`.

    The keys are `[cached; pending; kept block; whole block; parts]`; of what is new only the pending part stays in
    the store, and the whole blocks here.
    """

    store: Store
    filled: int
    kept: Layers
    pending: int
    whole: int
    repeat: int
    written: Layers = attrs.field(factory=dict)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """What transformers' attention layers call: new keys and values in, all of them out."""
        new = (key_states, value_states)
        head, mine = self.pending, slice(None, None, self.repeat)
        if self.whole:
            fresh = [t[mine, :, head : head + self.whole].clone() for t in new]
            self.written[layer_idx] = (fresh[0], fresh[1])
        old = self.kept.get(layer_idx, tuple(t[mine, :, :0] for t in new))
        joined = [
            torch.cat([t[:, :, :head], o.repeat_interleave(self.repeat, 0), t[:, :, head:]], 2)
            for t, o in zip(new, old, strict=True)
        ]
        if self.repeat == 1:
            return self.store.write(layer_idx, joined[0], joined[1], at=self.filled)
        stored = self.store.write(layer_idx, *(t[mine, :, :head] for t in new), at=self.filled)
        past = [t[:, :, : self.filled].repeat_interleave(self.repeat, 0) for t in stored]
        return torch.cat([past[0], joined[0]], 2), torch.cat([past[1], joined[1]], 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots before this pass."""
        return self.filled

    def merged(self, anew: Tensor) -> Layers:
        """The kept blocks after the pass: those of this pass in the rows `anew` `[B]`."""
        if not self.written or not self.kept:
            return self.written or self.kept
        result = {}
        for layer, pair in self.written.items():
            take = anew.view(-1, 1, 1, 1).to(pair[0].device)
            keys, values = (torch.where(take, n, o) for n, o in zip(pair, self.kept[layer], strict=True))
            result[layer] = (keys, values)
        return result


@attrs.frozen(eq=False)
class _Parts(Plan):
    """Who sees whom: keys are `[T slots; P pending; L kept; L whole; states x S]`, queries all but slots and kept.

    Attributes:
        anew: rows whose block is run whole `[B]`; the others read the kept one.
        start: where the part begins in the block `[B]`.
        span: positions per part.
        kept: whether there are kept blocks.
    """

    anew: Tensor
    start: Tensor
    span: int
    kept: bool

    @property
    def whole(self) -> int:
        """Positions of the whole blocks in this pass."""
        return self.width if bool(self.anew.any()) else 0

    @property
    def scored(self) -> int:
        """Positions of all parts."""
        return self.states * self.span

    def positions(self, device: torch.device) -> Tensor:
        """Absolute positions of the queries `[B, P + L + states * S]`."""
        lengths, waiting = self._counts(device)
        pending = lengths + torch.arange(max(self.waiting), device=device)
        begin = lengths + waiting
        whole = begin + torch.arange(self.whole, device=device)
        part = begin + self.start.unsqueeze(1) + torch.arange(self.span, device=device).repeat(self.states)
        return torch.cat([pending, whole, part], 1)

    def mask(self, device: torch.device) -> Tensor:
        """True where a query sees a key, `[B, 1, queries, keys]`; what does not count sees itself."""
        lengths, waiting = self._counts(device)
        past, pending, whole = max(self.lengths), max(self.waiting), self.whole
        kept, rows = self.width if self.kept else 0, len(self.lengths)
        mask = torch.zeros(
            rows, pending + whole + self.scored, past + pending + kept + whole + self.scored,
            dtype=torch.bool, device=device,
        )  # fmt: skip
        old, new, last = past + pending, past + pending + kept, past + pending + kept + whole
        mask[:, :, :past] = (torch.arange(past, device=device) < lengths).unsqueeze(1)
        real = (torch.arange(pending, device=device) < waiting).unsqueeze(1)
        itself = torch.eye(pending, dtype=torch.bool, device=device)
        mask[:, :pending, past:old] = (self._causal(pending, device) & real) | itself
        mask[:, pending:, past:old] = real
        mask[:, pending : pending + whole, new:last] = True
        place = torch.arange(self.width, device=device) - self.start.unsqueeze(1)
        outside = (place < 0) | (place >= self.span)
        anew = self.anew.unsqueeze(1)
        mask[:, pending + whole :, old:new] = (outside & ~anew)[:, :kept].unsqueeze(1)
        mask[:, pending + whole :, new:last] = (outside & anew)[:, :whole].unsqueeze(1)
        exists = (self.start.unsqueeze(1) + torch.arange(self.span, device=device)) < self.width
        own = exists.unsqueeze(1) | torch.eye(self.span, dtype=torch.bool, device=device)
        copies = torch.eye(self.states, dtype=torch.bool, device=device)
        mask[:, pending + whole :, last:] = torch.kron(copies, own)
        return mask.unsqueeze(1)
