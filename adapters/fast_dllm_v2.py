"""Fast-dLLM v2: block diffusion over Qwen2, exact cache, every position scored at the one before it.

The first token of a block is scored at the last position of the block before, once that is complete.

Source: Fast-dLLM's `v2/generation_functions.py`. Checkpoints: Efficient-Large-Model/Fast_dLLM_v2_7B, _1.5B.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotkit.options import LoadOptions
from spotkit.protocols import Target
from spotkit.types import TargetSpec

from . import presets
from .base import computed_in
from .block_cached import BlockCached
from .configs import names_of, native_config, refuse, sizes_of
from .dream import CHOICES, REQUIRED
from .family import Family
from .files import Build
from .presets import SPAN, Presets

_BLOCK_LENGTH = 32


class FastDLLMv2(Family):
    """Checkpoints of the Fast-dLLM v2 architecture, run by transformers' `Qwen2ForCausalLM`."""

    title = "Fast-dLLM v2"
    caches = ("exact", "block")
    kinds = ("Qwen2ForCausalLM",)
    mask_id = 151665
    shift = 1

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a Fast-dLLM v2 model."""
        return bool(names_of(config) & {"Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM"})

    @classmethod
    def build(cls, folder: Path, config: Mapping[str, Any]) -> Build:
        """See `Family.build`."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        refuse(folder, config, {"use_sliding_window": False})
        sizes = sizes_of(folder, config, required=REQUIRED, choices=CHOICES)
        return Build(Qwen2ForCausalLM, native_config(Qwen2Config, folder, config, sizes), sizes)

    @classmethod
    def block_length(cls, config: Mapping[str, Any], cache: str) -> int:
        """What the config says, else that of `generation_functions.py`."""
        return config.get("bd_size") or _BLOCK_LENGTH

    @classmethod
    def target(
        cls, spec: TargetSpec, model: Any, tokenizer: Any, *, options: LoadOptions, presets: Presets
    ) -> Target:
        """See `Family.target`."""
        if spec.variant != "block":
            return super().target(spec, model, tokenizer, options=options, presets=presets)
        spec, span = computed_in(spec, model), options.span or SPAN
        return BlockCached(spec, model, tokenizer, options.layout, cls.shift, presets, span=span)

    @classmethod
    def presets(cls, options: LoadOptions, cache: str) -> Presets:
        """See `spotkit.adapters.presets.fast_dllm_v2`."""
        return presets.fast_dllm_v2(options.span or SPAN)
