"""LLaDA-MoE: bidirectional over Qwen3-MoE, blocks from the end of the prompt.

Its `config.json` has the same `model_type` as dense LLaDA; the architecture tells them apart.

Source: LLaDA-MoE's `modeling_lladamoe.py` and LLaDA's `generate.py`. Checkpoints: inclusionAI/LLaDA-MoE-7B-A1B-*.
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
_MASK_ID = 156895  # dInfer
_BLOCK_LENGTH = 32  # LLaDA README


@attrs.frozen(eq=False)
class LLaDAMoE:
    """Loads checkpoints of the LLaDA-MoE architecture into transformers' `Qwen3MoeForCausalLM`."""

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a LLaDA model with experts."""
        return any(name.startswith("LLaDAMoE") for name in names_of(config))

    @classmethod
    def load(cls, folder: Path, *, config: Mapping[str, Any], options: LoadOptions) -> Target:
        """The target in `folder` with its `config.json`.

        Raises:
            CheckpointError: a file is missing or damaged, or the checkpoint is of a kind not supported.
        """
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        refuse(folder, config, _EXPECTED)
        sparse = config.get("moe_layer_freq")
        if isinstance(sparse, list) and not all(sparse):
            refuse(folder, {"moe_layer_freq": sparse}, {"moe_layer_freq": "1 in every layer"})
        sizes = sizes_of(folder, config, required=_REQUIRED, choices=_CHOICES)
        sizes |= {"head_dim": sizes["hidden_size"] // sizes["num_attention_heads"], "norm_topk_prob": False}
        return load_bidirectional(
            Qwen3MoeForCausalLM,
            Qwen3MoeConfig,
            folder,
            family="LLaDA-MoE",
            config=config,
            sizes=sizes,
            options=options,
            block_length=_BLOCK_LENGTH,
            mask_id=_MASK_ID,
            known=lambda _: presets.llada(),
        )
