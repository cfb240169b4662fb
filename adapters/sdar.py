"""SDAR and TraDo: block diffusion over Qwen3, exact cache, blocks aligned to absolute position 0.

Source: SDAR's and dLLM-RL's `modeling_sdar.py` and `generate.py`. Checkpoints: JetLM/SDAR-*, Gen-Verse/TraDo-*.
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
_EXPERTS = same("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
_CHOICES = {
    "hidden_act": ("hidden_act", "silu"),
    "max_position_embeddings": ("max_position_embeddings", 32768),
    "tie_word_embeddings": ("tie_word_embeddings", False),
    "attention_bias": ("attention_bias", False),
}
_BLOCK_LENGTH = 4  # SDAR `generate.py`


class SDAR(Family):
    """Checkpoints of the SDAR architecture, run by transformers' `Qwen3ForCausalLM` or `Qwen3MoeForCausalLM`."""

    title = "SDAR"
    caches = ("exact",)
    kinds = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes an SDAR model, dense or of experts."""
        return bool(names_of(config) & {"sdar", "SDARForCausalLM"}) or cls._sparse(config)

    @classmethod
    def build(cls, folder: Path, config: Mapping[str, Any]) -> Build:
        """See `Family.build`."""
        from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

        refuse(folder, config, {"use_sliding_window": False})
        if not cls._sparse(config):
            sizes = sizes_of(folder, config, required=_REQUIRED, choices=_CHOICES)
            return Build(Qwen3ForCausalLM, native_config(Qwen3Config, folder, config, sizes), sizes)
        refuse(folder, config, {"decoder_sparse_step": 1, "mlp_only_layers": []})
        sizes = sizes_of(folder, config, required=_REQUIRED | _EXPERTS, choices=_CHOICES)
        return Build(Qwen3MoeForCausalLM, native_config(Qwen3MoeConfig, folder, config, sizes), sizes)

    @classmethod
    def block_length(cls, config: Mapping[str, Any], cache: str) -> int:
        """What the config says, else that of `generate.py`."""
        return config.get("block_size") or _BLOCK_LENGTH

    @classmethod
    def presets(cls, options: LoadOptions, cache: str) -> Presets:
        """See `spotkit.adapters.presets.sdar`."""
        return presets.sdar(options.name)

    @classmethod
    def _sparse(cls, config: Mapping[str, Any]) -> bool:
        return bool(names_of(config) & {"sdar_moe", "SDARMoeForCausalLM"})
