"""Targets whose every position sees all others: prompt, answer so far, and the masks up to its end.

They have no exact cache of keys and values, so the canvas is the whole answer and every pass runs the prompt too.

Shapes: `B` rows, `K` states per row, `P` prompt ids (the most of any row), `N` canvas positions, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spotkit.errors import ConfigError

from .base import Native, check_rows


def check_heads(prompts: Sequence[Tensor], *, shift: int) -> None:
    """Refuses an empty prompt for a model that scores a token at the position before it.

    Raises:
        ConfigError: there is one.
    """
    if shift and not all(map(len, prompts)):
        raise ConfigError("prompts: an empty prompt; this model scores the first token at the last prompt id")


@attrs.frozen(eq=False)
class Prompts:
    """The context of a target without a cache: the prompts, padded on the left `[B, P]`, and their lengths `[B]`."""

    ids: Tensor
    lengths: Tensor


@attrs.frozen(eq=False)
class Bidirectional(Native):
    """A bidirectional target that recomputes everything in every pass."""

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> Prompts:
        """A context of the prompts; nothing is computed.

        Raises:
            ConfigError: an empty prompt for a model that scores a token at the position before it.
        """
        check_heads(prompts, shift=self.shift)
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        ids = [p.to(self.device, torch.int64) for p in prompts]
        padded = pad_sequence(ids, batch_first=True, padding_value=self.spec.pad_id, padding_side="left")
        return Prompts(padded, lengths)

    @torch.inference_mode()
    def score(self, canvases: Tensor, *, context: Prompts) -> tuple[Tensor, Prompts]:
        """One pass over the prompt and every canvas; logits `[B, K, N, V]` in the model's dtype.

        Raises:
            ConfigError: canvases for another number of rows than the context has.
        """
        rows, count, width = canvases.shape
        check_rows(canvases, len(context.ids))
        canvases = canvases.to(self.device)
        head = context.ids.shape[1]
        ids = torch.cat([context.ids.unsqueeze(1).expand(-1, count, -1), canvases], -1)
        column = torch.arange(head + width, device=self.device)
        padding = head - context.lengths.view(-1, 1)
        real = column >= padding
        mask = (real.unsqueeze(1) & real.unsqueeze(2)) | torch.eye(len(column), dtype=torch.bool, device=self.device)
        positions = (column - padding).clamp(min=0)
        scored = torch.arange(head - self.shift, head - self.shift + width, device=self.device)
        if self.layout == "tree":
            ids = ids.flatten(1)
            mask = torch.kron(torch.eye(count, dtype=torch.bool, device=self.device), mask)
            positions = positions.repeat(1, count)
            offsets = torch.arange(count, device=self.device).unsqueeze(1) * len(column)
            scored = (offsets + scored).flatten()
        else:
            ids = ids.flatten(0, 1)
            mask, positions = (t.repeat_interleave(count, 0) for t in (mask, positions))
        logits = self.forward(ids, mask=mask.unsqueeze(1), positions=positions, keep=scored)
        return logits.reshape(rows, count, width, -1), context

    def extend(self, context: Prompts, *, block: Tensor, rows: Tensor) -> Prompts:
        """Never asked for: the canvas holds every block of the answer."""
        raise ConfigError("block: this target's canvas is the whole answer, so no block leaves it")
