"""Dream, Dream-Coder and DiffuCoder: bidirectional over Qwen2, every position scored at the one before it.

Source: Dream's `modeling_dream.py` and `generation_utils.py`. Checkpoints: Dream-org/Dream-v0-*, Dream-Coder-v0-*,
apple/DiffuCoder-7B-*.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from spotkit.loading import LoadOptions
from spotkit.protocols import Target

from . import presets
from .configs import names_of, refuse, same, sizes_of
from .refreshed import load_bidirectional

REQUIRED = {
    **same("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps"),
    **same("num_attention_heads", "num_key_value_heads"),
}
CHOICES = {
    "hidden_act": ("hidden_act", "silu"),
    "max_position_embeddings": ("max_position_embeddings", 32768),
    "tie_word_embeddings": ("tie_word_embeddings", False),
}
"""Sizes of the Qwen2 architecture."""
_MASK_ID = 151666
_BLOCK_LENGTH = 32  # Fast-dLLM with a cache; Dream itself has one block per answer


@attrs.frozen(eq=False)
class Dream:
    """Loads checkpoints of the Dream architecture into transformers' `Qwen2ForCausalLM`."""

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a Dream model."""
        return bool(names_of(config) & {"Dream", "DreamModel"})

    @classmethod
    def load(cls, folder: Path, *, config: Mapping[str, Any], options: LoadOptions) -> Target:
        """The target in `folder` with its `config.json`.

        Raises:
            CheckpointError: a file is missing or damaged, or the checkpoint is of a kind not supported.
        """
        from transformers import Qwen2Config, Qwen2ForCausalLM

        refuse(folder, config, {"use_sliding_window": False})
        sizes = sizes_of(folder, config, required=REQUIRED, choices=CHOICES)
        return load_bidirectional(
            Qwen2ForCausalLM,
            Qwen2Config,
            folder,
            family="Dream",
            config=config,
            sizes=sizes,
            options=options,
            block_length=None if options.cache in (None, "none") else _BLOCK_LENGTH,
            mask_id=_MASK_ID,
            known=lambda cache: presets.dream(options.name, cache),
            shift=1,
        )
