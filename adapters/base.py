"""What all adapters over transformers' own classes share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from spotkit.errors import ConfigError
from spotkit.presets import Preset
from spotkit.types import TargetSpec

Layout = Literal["tree", "batch"]


def computed_in(spec: TargetSpec, model: Any) -> TargetSpec:
    """The spec with the numbers that the loaded model computes in."""
    return attrs.evolve(spec, dtype=str(model.dtype).removeprefix("torch."))


@attrs.frozen(eq=False)
class Native:
    """A transformers language model with everything that a target needs beside it.

    Attributes:
        spec: see `TargetSpec`.
        model: the transformers model, in evaluation mode.
        tokenizer: its tokenizer, or None if the checkpoint has none.
        layout: how `K` states share a pass: "tree", one sequence per row with a block-diagonal mask, or
            "batch", one sequence per state. The logits are equal up to the kernels' rounding.
        shift: 1 if the logits at a position score the token after it, else 0.
        presets: how the family's official generator decodes; see `Preset`.
    """

    spec: TargetSpec
    model: Any
    tokenizer: Any = None
    layout: Layout = "tree"
    shift: int = 0
    presets: Mapping[str, Preset] = attrs.field(factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the ids go in; the logits come back there."""
        embedding = self.model.get_input_embeddings()
        hook = getattr(embedding, "_hf_hook", None)  # accelerate keeps offloaded weights elsewhere
        where = getattr(hook, "execution_device", None)
        return embedding.weight.device if where is None else torch.device(where)

    def forward(
        self, ids: Tensor, *, mask: Tensor, positions: Tensor, keep: int | Tensor, cache: Any = None
    ) -> Tensor:
        """Logits `[Q, keep, V]` of one call of the model.

        Args:
            ids: `[Q, S]`.
            mask: who sees whom, bool `[Q, 1, S, keys]`.
            positions: absolute positions `[Q, S]`.
            keep: the last so many positions are scored, or those with the given indices.
            cache: keys and values of earlier passes, or None.
        """
        if self.model.config._attn_implementation == "eager":  # eager adds the mask, whatever its type
            lowest = torch.finfo(self.model.dtype).min
            mask = torch.zeros(mask.shape, dtype=self.model.dtype, device=mask.device).masked_fill_(~mask, lowest)
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            logits_to_keep=keep,
            use_cache=cache is not None,
            **({} if cache is None else {_cache_argument(type(self.model)): cache}),
        )
        logits: Tensor = output.logits
        return logits.to(self.device)


def check_rows(canvases: Tensor, rows: int) -> None:
    """Refuses canvases `[B, K, N]` for a context of another number of rows.

    Raises:
        ConfigError: they differ.
    """
    if len(canvases) != rows:
        raise ConfigError(f"canvases: {len(canvases)} rows for a context of {rows}; give one row each")


def shifted(logits: Tensor, before: Tensor) -> Tensor:
    """Logits `[B, K, N, V]` moved on by one position, those of the position `before` the canvas `[B, V]` first."""
    head = before.view(len(before), 1, 1, -1).expand(-1, logits.shape[1], -1, -1)
    return torch.cat([head, logits[:, :, :-1]], 2)


def _cache_argument(kind: type[Any]) -> str:
    """What the model's forward calls its cache: `cache`, or in older transformers `past_key_values`."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"
