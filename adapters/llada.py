"""LLaDA, LLaDA-1.5 and iLLaDA: bidirectional over Llama, blocks from the end of the prompt.

Source: LLaDA's `modeling_llada.py` and `generate.py`. Checkpoints: GSAI-ML/LLaDA-8B-*, LLaDA-1.5, iLLaDA-8B-*.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotkit.options import LoadOptions

from . import presets
from .configs import names_of, native_config, refuse, sizes_of
from .family import Family
from .files import Build
from .presets import Presets

_REQUIRED = {
    "vocab_size": "embedding_size",
    "hidden_size": "d_model",
    "intermediate_size": "mlp_hidden_size",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "rms_norm_eps": "rms_norm_eps",
}
_CHOICES = {
    "max_position_embeddings": ("max_sequence_length", 4096),
    "tie_word_embeddings": ("weight_tying", False),
}
_EXPECTED = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "rope": True,
    "scale_logits": False,
}
_BLOCK = r"model\.transformer\.blocks\.(\d+)\."
NAMES = {
    r"model\.transformer\.wte\.": "model.embed_tokens.",
    r"model\.transformer\.ln_f\.": "model.norm.",
    r"model\.transformer\.ff_out\.": "lm_head.",
    _BLOCK + r"attn_norm\.": r"model.layers.\1.input_layernorm.",
    _BLOCK + r"ff_norm\.": r"model.layers.\1.post_attention_layernorm.",
    _BLOCK + r"q_proj\.": r"model.layers.\1.self_attn.q_proj.",
    _BLOCK + r"k_proj\.": r"model.layers.\1.self_attn.k_proj.",
    _BLOCK + r"v_proj\.": r"model.layers.\1.self_attn.v_proj.",
    _BLOCK + r"attn_out\.": r"model.layers.\1.self_attn.o_proj.",
    _BLOCK + r"ff_proj\.": r"model.layers.\1.mlp.gate_proj.",
    _BLOCK + r"up_proj\.": r"model.layers.\1.mlp.up_proj.",
    _BLOCK + r"ff_out\.": r"model.layers.\1.mlp.down_proj.",
}
"""Names of weights: patterns of the official ones, and transformers'."""
_BLOCK_LENGTH = 32  # LLaDA README


class LLaDA(Family):
    """Checkpoints of the LLaDA architecture, run by transformers' `LlamaForCausalLM`."""

    title = "LLaDA"
    caches = ("none", "prefix", "dual")
    kinds = ("LlamaForCausalLM",)
    mask_id = 126336  # LLaDA `generate.py`

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a dense LLaDA model (the one with experts has the same `model_type`)."""
        names = names_of(config)
        return "LLaDAModelLM" in names or (names == {"llada"} and "d_model" in config)

    @classmethod
    def build(cls, folder: Path, config: Mapping[str, Any]) -> Build:
        """See `Family.build`."""
        from transformers import LlamaConfig, LlamaForCausalLM

        refuse(folder, config, _EXPECTED)
        sizes = sizes_of(folder, config, required=_REQUIRED, choices=_CHOICES)
        sizes["num_key_value_heads"] = config.get("n_kv_heads") or sizes["num_attention_heads"]
        return Build(LlamaForCausalLM, native_config(LlamaConfig, folder, config, sizes), sizes, names=NAMES)

    @classmethod
    def block_length(cls, config: Mapping[str, Any], cache: str) -> int:
        """That of the README."""
        return _BLOCK_LENGTH

    @classmethod
    def presets(cls, options: LoadOptions, cache: str) -> Presets:
        """See `spotkit.adapters.presets.llada`."""
        return presets.llada()
