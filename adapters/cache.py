"""Keys and values of the context: buffers that grow, and contexts that are values all the same.

Shapes: `B` rows, `K` states per row, `P` pending tokens (the most of any row), `N` canvas positions,
`T` filled slots (the most of any row), `H` key heads, `D` head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import attrs
import torch
from torch import Tensor


@attrs.define(eq=False)
class Store:
    """Key and value buffers `[B, H, capacity, D]` of every layer, each on its layer's device.

    Contexts that come from one another share a store. Only the newest of them, whose `version` is the
    store's, may write; it writes beyond the slots that older ones read. So appending copies nothing.
    """

    layers: dict[int, tuple[Tensor, Tensor]] = attrs.field(factory=dict)
    version: int = 0

    def write(self, layer: int, keys: Tensor, values: Tensor, *, at: int) -> tuple[Tensor, Tensor]:
        """Writes `[B, H, Q, D]` from slot `at` on; returns the slots so far as views `[B, H, at + Q, D]`."""
        old = self.layers.get(layer, (None, None))
        new = tuple(_put(buffer, fresh, at) for buffer, fresh in zip(old, (keys, values), strict=True))
        self.layers[layer] = (new[0], new[1])
        end = at + keys.shape[2]
        return new[0][:, :, :end], new[1][:, :, :end]

    def copy(self, filled: int) -> Store:
        """A store of its own with the first `filled` slots."""
        return Store({i: (k[:, :, :filled].clone(), v[:, :, :filled].clone()) for i, (k, v) in self.layers.items()})

    def compact(self, starts: Tensor, *, filled: int, count: int) -> None:
        """Moves the `count` slots after `filled` to follow each row's own last slot, `starts` `[B]`.

        Rows with fewer pending tokens get padding there, beyond their length.
        """
        slots = starts.unsqueeze(1) + torch.arange(count, device=starts.device)
        for pair in self.layers.values():
            for buffer in pair:
                fresh = buffer[:, :, filled : filled + count].clone()
                index = slots.to(buffer.device).view(len(slots), 1, count, 1).expand_as(fresh)
                buffer.scatter_(2, index, fresh)


def _put(buffer: Tensor | None, fresh: Tensor, at: int) -> Tensor:
    end = at + fresh.shape[2]
    if buffer is None or buffer.shape[2] < end:
        rows, heads, _, width = fresh.shape
        grown = fresh.new_empty(rows, heads, end if buffer is None else max(end, 2 * buffer.shape[2]), width)
        if buffer is not None:
            grown[:, :, :at] = buffer[:, :, :at]
        buffer = grown
    buffer[:, :, at:end] = fresh
    return buffer


@attrs.frozen(eq=False)
class TreeCache:
    """The cache argument of a pass that scores `[pending; K canvases]` as one sequence per row.

    The canvases' keys and values stand in the store's free slots during the pass and are not kept.
    """

    store: Store
    filled: int

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """What transformers' attention layers call: new keys and values in, all of them out."""
        return self.store.write(layer_idx, key_states, value_states, at=self.filled)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots before this pass."""
        return self.filled


@attrs.frozen(eq=False)
class BatchCache:
    """The cache argument of a pass that scores `[pending; canvas]` of every state as a sequence of its own."""

    store: Store
    filled: int
    pending: int
    count: int

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """What transformers' attention layers call: new keys and values in, all of them out."""
        mine = slice(None, None, self.count)
        kept = self.store.write(
            layer_idx,
            key_states[mine, :, : self.pending],
            value_states[mine, :, : self.pending],
            at=self.filled,
        )
        past = [t[:, :, : self.filled].repeat_interleave(self.count, 0) for t in kept]
        return torch.cat([past[0], key_states], 2), torch.cat([past[1], value_states], 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots before this pass."""
        return self.filled


@attrs.frozen(eq=False)
class Context:
    """Ids that come before the canvases: those with stored keys and values, then those still to be run.

    A value: scoring and extending give new contexts, and older ones remain usable.
    """

    store: Store
    version: int
    lengths: tuple[int, ...]
    """Slots filled, per row."""
    pending: tuple[Tensor, ...]
    """Ids that the next pass runs in front of the canvases, per row `[P_b]`."""
    before: Tensor | None = None
    """Logits at the last position that has been run `[B, V]`; only models that score the next token keep them."""

    @property
    def filled(self) -> int:
        """Slots of the longest row."""
        return max(self.lengths)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Pending ids, per row."""
        return tuple(ids.shape[0] for ids in self.pending)

    def writable(self) -> Store:
        """The store if this is the newest context of its line, else a copy."""
        return self.store if self.version == self.store.version else self.store.copy(self.filled)

    def last_logits(self, ended: Tensor, ends: Sequence[int]) -> Tensor:
        """Logits at the last position of every row once its pending ids have been run `[B, V]`.

        Rows without any ids get zeros: the first position of their canvas belongs to the prompt.

        Args:
            ended: logits of the pass at the pending positions `ends` `[B, E, V]`.
            ends: last pending position of each row that has any, each once.
        """
        old = ended.new_zeros(len(ended), ended.shape[-1]) if self.before is None else self.before
        rows = [ended[row, ends.index(n - 1)] if n else old[row] for row, n in enumerate(self.waiting)]
        return torch.stack(rows)

    def after_pass(self, store: Store) -> Self:
        """The context once its pending ids have their keys and values in `store`."""
        waiting = self.waiting
        if any(waiting):
            if min(self.lengths) < self.filled:
                starts = torch.tensor(self.lengths)
                store.compact(starts, filled=self.filled, count=max(waiting))
            store.version += 1
        lengths = tuple(have + new for have, new in zip(self.lengths, waiting, strict=True))
        pending = tuple(ids[:0] for ids in self.pending)
        return attrs.evolve(self, store=store, version=store.version, lengths=lengths, pending=pending)
