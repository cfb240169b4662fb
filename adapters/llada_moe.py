"""LLaDA-MoE: bidirectional over Qwen3-MoE, blocks from the end of the prompt.

Its `config.json` has the same `model_type` as dense LLaDA; the architecture tells them apart.

Source: LLaDA-MoE's `modeling_lladamoe.py` and LLaDA's `generate.py`. Checkpoints: inclusionAI/LLaDA-MoE-7B-A1B-*.
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

_REQUIRED = {
    **same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    **same("num_experts", "num_experts_per_tok", "rms_norm_eps"),
    "moe_intermediate_size": "expert_intermediate_size",
}
_CHOICES = {
    "intermediate_size": ("dense_intermediate_size", 8192),
    "hidden_act": ("hidden_act", "silu"),
    "max_position_embeddings": ("max_position_embeddings", 8192),
    "tie_word_embeddings": ("tie_word_embeddings", False),
}
_EXPECTED = {
    "attention_bias": False,
    "clip_qkv": None,
    "moe_router_enable_expert_bias": False,
    "moe_router_score_function": "softmax",
    "norm_topk_prob": False,
    "partial_rotary_factor": 1,
    "qk_layernorm": True,
    "routed_scaling_factor": 1,
    "shared_expert_intermediate_size": 0,
}
_BLOCK_LENGTH = 32  # LLaDA README


class LLaDAMoE(Family):
    """Checkpoints of the LLaDA-MoE architecture, run by transformers' `Qwen3MoeForCausalLM`."""

    title = "LLaDA-MoE"
    caches = ("none", "prefix", "dual")
    kinds = ("Qwen3MoeForCausalLM",)
    mask_id = 156895  # dInfer

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a LLaDA model with experts."""
        return any(name.startswith("LLaDAMoE") for name in names_of(config))

    @classmethod
    def build(cls, folder: Path, config: Mapping[str, Any]) -> Build:
        """See `Family.build`."""
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        refuse(folder, config, _EXPECTED)
        sparse = config.get("moe_layer_freq")
        if isinstance(sparse, list) and not all(sparse):
            refuse(folder, {"moe_layer_freq": sparse}, {"moe_layer_freq": "1 in every layer"})
        sizes = sizes_of(folder, config, required=_REQUIRED, choices=_CHOICES)
        sizes |= {"head_dim": sizes["hidden_size"] // sizes["num_attention_heads"], "norm_topk_prob": False}
        return Build(Qwen3MoeForCausalLM, native_config(Qwen3MoeConfig, folder, config, sizes), sizes)

    @classmethod
    def block_length(cls, config: Mapping[str, Any], cache: str) -> int:
        """That of LLaDA's README."""
        return _BLOCK_LENGTH

    @classmethod
    def presets(cls, options: LoadOptions, cache: str) -> Presets:
        """See `spotkit.adapters.presets.llada`."""
        return presets.llada()
