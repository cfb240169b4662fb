"""Fast-dLLM v2: block diffusion over Qwen2, exact cache, every position scored at the one before it.

The first token of a block is scored at the last position of the block before, once that is complete.

Source: Fast-dLLM's `v2/generation_functions.py`. Checkpoints: Efficient-Large-Model/Fast_dLLM_v2_7B, _1.5B.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from spotkit.loading import LoadOptions

from . import presets
from .base import computed_in
from .block_causal import BlockCausal
from .configs import cache_of, names_of, native_config, refuse, sizes_of, spec_of
from .dream import CHOICES, REQUIRED
from .files import load_model, load_tokenizer

_MASK_ID = 151665
_BLOCK_LENGTH = 32


@attrs.frozen(eq=False)
class FastDLLMv2(BlockCausal):
    """A checkpoint of the Fast-dLLM v2 architecture, run by transformers' `Qwen2ForCausalLM`."""

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a Fast-dLLM v2 model."""
        return bool(names_of(config) & {"Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM"})

    @classmethod
    def load(cls, folder: Path, *, config: Mapping[str, Any], options: LoadOptions) -> FastDLLMv2:
        """The target in `folder` with its `config.json`.

        Raises:
            CheckpointError: a file is missing or damaged, or the checkpoint is of a kind not supported.
        """
        from transformers import Qwen2Config, Qwen2ForCausalLM

        cache = cache_of(options.cache, ("exact",), name="Fast-dLLM v2")
        refuse(folder, config, {"use_sliding_window": False})
        sizes = sizes_of(folder, config, required=REQUIRED, choices=CHOICES)
        tokenizer = load_tokenizer(folder)
        length = config.get("bd_size") or _BLOCK_LENGTH
        spec = spec_of(
            folder,
            config,
            tokenizer,
            sizes=sizes,
            options=options,
            block_length=length,
            mask_id=_MASK_ID,
            cache=cache,
        )
        native = native_config(Qwen2Config, folder, config, sizes)
        model = load_model(Qwen2ForCausalLM, folder, config=native, options=options)
        known = presets.preferred(folder, config, presets.fast_dllm_v2())
        return cls(computed_in(spec, model), model, tokenizer, options.layout, shift=1, presets=known)
