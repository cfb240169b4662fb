"""Dream, Dream-Coder and DiffuCoder: bidirectional over Qwen2, every position scored at the one before it.

Source: Dream's `modeling_dream.py` and `generation_utils.py`. Checkpoints: Dream-org/Dream-v0-*, Dream-Coder-v0-*,
apple/DiffuCoder-7B-*.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotkit.options import LoadOptions

from . import presets
from .configs import names_of, native_config, refuse, same, sizes_of
from .family import Family
from .files import Build
from .presets import Presets

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
_BLOCK_LENGTH = 32  # Fast-dLLM with a cache; Dream itself has one block per answer


class Dream(Family):
    """Checkpoints of the Dream architecture, run by transformers' `Qwen2ForCausalLM`."""

    title = "Dream"
    caches = ("none", "prefix", "dual")
    kinds = ("Qwen2ForCausalLM",)
    mask_id = 151666
    shift = 1

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a Dream model."""
        return bool(names_of(config) & {"Dream", "DreamModel"})

    @classmethod
    def build(cls, folder: Path, config: Mapping[str, Any]) -> Build:
        """See `Family.build`."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        refuse(folder, config, {"use_sliding_window": False})
        sizes = sizes_of(folder, config, required=REQUIRED, choices=CHOICES)
        return Build(Qwen2ForCausalLM, native_config(Qwen2Config, folder, config, sizes), sizes)

    @classmethod
    def block_length(cls, config: Mapping[str, Any], cache: str) -> int | None:
        """That of Fast-dLLM with its caches; without, the answer is one block."""
        return None if cache == "none" else _BLOCK_LENGTH

    @classmethod
    def presets(cls, options: LoadOptions, cache: str) -> Presets:
        """See `spotkit.adapters.presets.dream`."""
        return presets.dream(options.name, cache)
