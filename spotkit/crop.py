"""The part of a canvas that a drafter looks at: some blocks from the open one on.

Bidirectional targets have the whole answer as canvas; a drafter looks as far as its tree can grow.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from spotkit.types import Draft, Evidence, State, TargetSpec


@attrs.frozen(eq=False)
class Crop:
    """A piece of every row's canvas; `M = blocks * L` positions from the row's open block on.

    Where that reaches beyond the canvas, positions do not exist.
    """

    state: State
    """`[B]`, canvases `[B, M]`."""
    evidence: Evidence
    """`[B, M]`; nothing is known beyond the canvas."""
    begin: Tensor | None = None
    """Index of the piece's first position in the canvas `[B]`; None if it is the canvas."""

    def spread_back(self, draft: Draft, state: State) -> Draft:
        """`draft` of the piece as a draft of the whole `state` that it was cut from."""
        if self.begin is None:
            return draft
        whole = state.spread(draft.valid.shape[1])
        made, width = draft.states, whole.canvas.shape[-1]
        size = made.canvas.shape[-1]
        index = self.begin.view(-1, 1, 1) + torch.arange(size, device=self.begin.device)
        index = index.expand_as(made.canvas)
        # Room behind the canvas takes what of the piece lies beyond it.
        canvas, committed = (functional.pad(t, (0, size)) for t in (whole.canvas, whole.committed))
        canvas = canvas.scatter(-1, index, made.canvas)[..., :width]
        committed = committed.scatter(-1, index, made.committed)[..., :width]
        return Draft(attrs.evolve(whole, canvas=canvas, committed=committed, step=made.step), draft.valid)


def crop(state: State, evidence: Evidence, *, blocks: int, spec: TargetSpec) -> Crop:
    """At most `blocks` blocks of every row of `state` `[B]`, from its open block on."""
    width = state.canvas.shape[-1]
    size = min(blocks * state.block_length, width)
    if size == width and not spec.whole_answer:
        return Crop(state, evidence)  # such a canvas begins with the open block
    begin = (state.open_block * state.block_length).clamp(max=width - state.block_length)
    index = begin.unsqueeze(-1) + torch.arange(size, device=begin.device)
    beyond, index = index >= width, index.clamp(max=width - 1)
    across = index.unsqueeze(-1).expand(-1, -1, evidence.logprobs.shape[-1])
    return Crop(
        attrs.evolve(
            state,
            canvas=state.canvas.gather(1, index),
            committed=state.committed.gather(1, index).masked_fill(beyond, False),
            start=state.start + begin,
        ),
        Evidence(
            evidence.logprobs.gather(1, across),
            evidence.known.gather(1, index).masked_fill(beyond, False),
            evidence.committed.gather(1, index).masked_fill(beyond, False),
        ),
        begin,
    )
