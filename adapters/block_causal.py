"""Block-causal targets with an exact cache, on the absolute block grid.

Shapes: `B` rows, `K` states per row, `P` pending tokens, `N` canvas positions, `T` cached slots, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spotkit.errors import ConfigError

from .base import Native, check_rows, shifted
from .cache import BatchCache, Context, Store, TreeCache


@attrs.frozen(eq=False)
class BlockCausal(Native):
    """A target over a transformers causal language model, block-causal on the absolute block grid.

    Neither a prompt nor a finished block costs a pass: they wait in the context, and the next pass runs them
    in front of its canvases.
    """

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> Context:
        """A context whose ids are all pending.

        Raises:
            ConfigError: a prompt that does not end at a block boundary.
        """
        length = self.spec.block_length
        for row, ids in enumerate(prompts):
            if len(ids) % length:
                raise ConfigError(
                    f"prompts[{row}]: {len(ids)} ids; give whole blocks of {length}, the rest belongs to the canvas"
                )
        pending = tuple(ids.to(self.device, torch.int64) for ids in prompts)
        return Context(Store(), 0, (0,) * len(pending), pending)

    @torch.inference_mode()
    def extend(self, context: Context, *, block: Tensor, rows: Tensor) -> Context:
        """Adds the block's ids to the pending ones."""
        pairs = zip(context.pending, block.to(self.device), rows.tolist(), strict=True)
        pending = tuple(torch.cat([ids, new]) if grows else ids for ids, new, grows in pairs)
        return attrs.evolve(context, pending=pending)

    @torch.inference_mode()
    def score(self, canvases: Tensor, *, context: Context) -> tuple[Tensor, Context]:
        """One pass over the pending ids and all canvases; logits `[B, K, N, V]` in the model's dtype.

        Raises:
            ConfigError: canvases for another number of rows than the context has.
        """
        rows, count, width = canvases.shape
        canvases = canvases.to(self.device)
        check_rows(canvases, len(context.lengths))
        store = context.writable()
        ids = pad_sequence(list(context.pending), batch_first=True, padding_value=self.spec.pad_id)
        tree = self.layout == "tree"
        plan = Plan(context.lengths, context.waiting, count if tree else 1, width, self.spec.block_length)
        mask, positions = plan.mask(self.device), plan.positions(self.device)
        cache: TreeCache | BatchCache
        if tree:
            cache = TreeCache(store, context.filled)
            ids = torch.cat([ids, canvases.flatten(1)], 1)
        else:
            cache = BatchCache(store, context.filled, pending=ids.shape[1], count=count)
            ids, mask, positions = (t.repeat_interleave(count, 0) for t in (ids, mask, positions))
            ids = torch.cat([ids, canvases.flatten(0, 1)], 1)
        ends = sorted({n - 1 for n in context.waiting if n}) if self.shift else []
        scored = ids.shape[1] - plan.scored + torch.arange(plan.scored)
        keep = torch.cat([torch.tensor(ends, dtype=torch.long), scored]).to(self.device)
        logits = self.forward(ids, mask=mask, positions=positions, cache=cache, keep=keep)
        after = context.after_pass(store)
        ended, canvas = logits.split([len(ends), plan.scored], dim=1)
        states = canvas.reshape(rows, count, width, -1)
        if not self.shift:
            return states, after
        before = context.last_logits(ended if tree else ended[::count], ends)
        return shifted(states, before), attrs.evolve(after, before=before)


@attrs.frozen
class Plan:
    """Who sees whom, and where everyone stands, in one pass.

    Keys are `[T slots; P pending; states x N canvas positions]`, queries the latter two. Lengths are whole
    blocks, so that block relations do not depend on the row.
    """

    lengths: tuple[int, ...]
    waiting: tuple[int, ...]
    states: int
    width: int
    block: int

    @property
    def scored(self) -> int:
        """Canvas positions per sequence."""
        return self.states * self.width

    def positions(self, device: torch.device) -> Tensor:
        """Absolute positions of the queries `[B, P + states * N]`."""
        lengths, waiting = self._counts(device)
        pending = lengths + torch.arange(max(self.waiting), device=device)
        canvas = lengths + waiting + torch.arange(self.width, device=device).repeat(self.states)
        return torch.cat([pending, canvas], 1)

    def mask(self, device: torch.device) -> Tensor:
        """True where a query sees a key, `[B, 1, P + states * N, T + P + states * N]`.

        Padding sees itself, so that no row of the attention is empty.
        """
        lengths, waiting = self._counts(device)
        past, pending = max(self.lengths), max(self.waiting)
        queries = pending + self.scored
        mask = torch.zeros(len(self.lengths), queries, past + queries, dtype=torch.bool, device=device)
        mask[:, :, :past] = (torch.arange(past, device=device) < lengths).unsqueeze(1)
        real = (torch.arange(pending, device=device) < waiting).unsqueeze(1)
        itself = torch.eye(pending, dtype=torch.bool, device=device)
        mask[:, :pending, past : past + pending] = (self._causal(pending, device) & real) | itself
        mask[:, pending:, past : past + pending] = real
        copies = torch.eye(self.states, dtype=torch.bool, device=device)
        mask[:, pending:, past + pending :] = torch.kron(copies, self._causal(self.width, device))
        return mask.unsqueeze(1)

    def _causal(self, count: int, device: torch.device) -> Tensor:
        blocks = torch.arange(count, device=device) // self.block
        return blocks.unsqueeze(1) >= blocks

    def _counts(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cached and pending tokens per row `[B, 1]`."""
        return torch.tensor(self.lengths, device=device)[:, None], torch.tensor(self.waiting, device=device)[:, None]
