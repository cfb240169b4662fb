"""When a row is finished, and which of its tokens are returned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spotkit.types import State


def finished(
    state: State, *, prompt_end: Tensor, text_end: Tensor, eos_ids: Sequence[int], whole_blocks: bool
) -> Tensor:
    """Which states `[...]` need no further step.

    A row is finished when everything up to its first end token, or up to its last wanted position, is
    committed; with `whole_blocks`, when the block that holds it is complete as well (as the official
    block-diffusion generators do).

    Args:
        state: `[...]`, in a window before which everything is committed.
        prompt_end: absolute position after the prompt `[...]`; end tokens before it do not count.
        text_end: absolute position after the last token asked for `[...]`.
        eos_ids: end tokens.
        whole_blocks: see above.
    """
    if whole_blocks:
        count = state.open_block * state.block_length
    else:
        count = (state.committed & state.exists).long().cumprod(-1).sum(-1)
    position = state.positions
    reached = position < (state.start + count).unsqueeze(-1)
    generated = (position >= prompt_end.unsqueeze(-1)) & (position < text_end.unsqueeze(-1))
    ended = torch.isin(state.canvas, torch.tensor(list(eos_ids), dtype=torch.long, device=state.canvas.device))
    return (reached & generated & ended).any(-1) | (state.start + count >= text_end)


def trim(ids: Sequence[int], *, eos_ids: Sequence[int], most: int) -> tuple[tuple[int, ...], str]:
    """The new tokens through the first end token, at most `most`, and why they end (`eos` or `length`)."""
    for i, token in enumerate(ids[:most]):
        if token in eos_ids:
            return tuple(ids[: i + 1]), "eos"
    return tuple(ids[:most]), "length"
