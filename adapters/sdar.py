"""SDAR and TraDo: block diffusion over Qwen3, exact cache, blocks aligned to absolute position 0.

Source: SDAR's and dLLM-RL's `modeling_sdar.py` and `generate.py`. Checkpoints: JetLM/SDAR-*, Gen-Verse/TraDo-*.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from spotkit.errors import CheckpointError
from spotkit.loading import LoadOptions

from . import presets
from .base import computed_in
from .block_causal import BlockCausal
from .configs import cache_of, names_of, native_config, refuse, same, sizes_of, spec_of
from .files import load_model, load_tokenizer

_REQUIRED = same(
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
)
_CHOICES = {
    "hidden_act": ("hidden_act", "silu"),
    "max_position_embeddings": ("max_position_embeddings", 32768),
    "tie_word_embeddings": ("tie_word_embeddings", False),
    "attention_bias": ("attention_bias", False),
}
_BLOCK_LENGTH = 4  # SDAR `generate.py`


@attrs.frozen(eq=False)
class SDAR(BlockCausal):
    """A checkpoint of the SDAR architecture, run by transformers' `Qwen3ForCausalLM`."""

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes an SDAR model, of experts or dense."""
        return bool(names_of(config) & {"sdar", "SDARForCausalLM", "sdar_moe", "SDARMoeForCausalLM"})

    @classmethod
    def load(cls, folder: Path, *, config: Mapping[str, Any], options: LoadOptions) -> SDAR:
        """The target in `folder` with its `config.json`.

        Raises:
            CheckpointError: a file is missing or damaged, or the checkpoint is of a kind not supported.
        """
        from transformers import Qwen3Config, Qwen3ForCausalLM

        if config.get("num_experts") or "moe" in f"{config.get('model_type')} {config.get('architectures')}".lower():
            raise CheckpointError(
                f"{folder}: SDAR with experts is not supported; use a dense SDAR or TraDo checkpoint"
            )
        cache = cache_of(options.cache, ("exact",), name="SDAR")
        refuse(folder, config, {"use_sliding_window": False})
        sizes = sizes_of(folder, config, required=_REQUIRED, choices=_CHOICES)
        tokenizer = load_tokenizer(folder)
        length = config.get("block_size") or _BLOCK_LENGTH
        spec = spec_of(folder, config, tokenizer, sizes=sizes, options=options, block_length=length, cache=cache)
        native = native_config(Qwen3Config, folder, config, sizes)
        model = load_model(Qwen3ForCausalLM, folder, config=native, options=options)
        known = presets.preferred(folder, config, presets.sdar(options.name))
        return cls(computed_in(spec, model), model, tokenizer, options.layout, presets=known)
