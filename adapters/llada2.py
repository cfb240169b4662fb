"""LLaDA2.0: block diffusion over GLM-4-MoE, exact cache, blocks aligned to absolute position 0.

Source: LLaDA2's `modeling_llada2_moe.py`. Checkpoints: inclusionAI/LLaDA2.0-mini, LLaDA2.0-flash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from spotkit.errors import CheckpointError
from spotkit.options import LoadOptions
from spotkit.types import TargetSpec

from . import presets
from .configs import names_of, native_config, refuse, same, sizes_of
from .family import Family
from .files import Build
from .presets import Presets

_REQUIRED = {
    **same("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "rms_norm_eps"),
    **same("num_attention_heads", "num_key_value_heads", "moe_intermediate_size", "num_experts_per_tok"),
    **same("n_group", "topk_group", "first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor"),
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
}
_CHOICES = {
    "hidden_act": ("hidden_act", "silu"),
    "max_position_embeddings": ("max_position_embeddings", 32768),
    "tie_word_embeddings": ("tie_word_embeddings", False),
    "use_qk_norm": ("use_qk_norm", True),
}
_EXPECTED = {
    "use_bias": False,
    "use_qkv_bias": False,
    "use_sliding_window": False,
    "use_rmsnorm": True,
    "moe_router_enable_expert_bias": True,
    "score_function": "sigmoid",
}
_NAMES = {
    "model.word_embeddings.": "model.embed_tokens.",
    ".attention.dense.": ".self_attn.o_proj.",
    ".attention.query_layernorm.": ".self_attn.q_norm.",
    ".attention.key_layernorm.": ".self_attn.k_norm.",
    ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
}
_FUSED = ".attention.query_key_value."
_BLOCK_LENGTH = 32
_EDITING = "LLaDA2.1"


class LLaDA2(Family):
    """Checkpoints of the LLaDA2 architecture, run by transformers' `Glm4MoeForCausalLM`."""

    title = "LLaDA2"
    caches = ("exact",)
    kinds = ("Glm4MoeForCausalLM",)
    mask_id = 156895

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a LLaDA2 model."""
        return bool(names_of(config) & {"llada2_moe", "LLaDA2MoeModelLM"})

    @classmethod
    def build(cls, folder: Path, config: Mapping[str, Any]) -> Build:
        """See `Family.build`."""
        from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

        refuse(folder, config, _EXPECTED)
        sizes = sizes_of(folder, config, required=_REQUIRED, choices=_CHOICES)
        sizes["rope_parameters"] = {"partial_rotary_factor": config.get("partial_rotary_factor", 1.0)} | sizes[
            "rope_parameters"
        ]
        native = native_config(Glm4MoeConfig, folder, config, sizes | {"num_nextn_predict_layers": 0})
        return Build(Glm4MoeForCausalLM, native, sizes, convert=converter(sizes))

    @classmethod
    def describe(
        cls,
        origin: str | Path,
        *,
        config: Mapping[str, Any],
        generation: Mapping[str, Any],
        sizes: Mapping[str, Any],
        options: LoadOptions,
        tokenizer: Any,
    ) -> TargetSpec:
        """See `Family.describe`; LLaDA2.1 is refused."""
        if _EDITING.lower() in f"{options.name} {config.get('_name_or_path', '')}".lower():
            raise CheckpointError(
                f"{origin}: {_EDITING} also rewrites tokens that it has committed, which a state here cannot say; "
                "use a LLaDA2.0 checkpoint"
            )
        return super().describe(
            origin, config=config, generation=generation, sizes=sizes, options=options, tokenizer=tokenizer
        )

    @classmethod
    def block_length(cls, config: Mapping[str, Any], cache: str) -> int:
        """That of the model card."""
        return _BLOCK_LENGTH

    @classmethod
    def presets(cls, options: LoadOptions, cache: str) -> Presets:
        """See `spotkit.adapters.presets.llada2`."""
        return presets.llada2()


def converter(sizes: Mapping[str, Any]) -> Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]:
    """Gives an official weight under transformers' names: query, key and value are one matrix there."""
    heads, groups, width = sizes["num_attention_heads"], sizes["num_key_value_heads"], sizes["head_dim"]

    def convert(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        if _FUSED in name:
            rows = [heads * width, groups * width, groups * width]
            if weight.shape[0] != sum(rows):
                yield name, weight  # reported as not in the model
                return
            for letter, part in zip("qkv", weight.split(rows), strict=True):
                yield name.replace(_FUSED, f".self_attn.{letter}_proj."), part
            return
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        yield name, weight

    return convert
