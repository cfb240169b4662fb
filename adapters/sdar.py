"""SDAR and TraDo: block diffusion over Qwen3, exact cache, blocks aligned to absolute position 0.

Source: SDAR's and dLLM-RL's `modeling_sdar.py` and `generate.py`. Checkpoints: JetLM/SDAR-*, Gen-Verse/TraDo-*.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from spotkit.errors import CheckpointError
from spotkit.types import TargetSpec

from .base import BlockCausal, Layout
from .files import fingerprint, known_ids, load_model, load_tokenizer, read_json

_SIZES = (
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
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_BLOCK_LENGTH = 4  # SDAR `generate.py`


@attrs.frozen(eq=False)
class SDAR(BlockCausal):
    """A checkpoint of the SDAR architecture, run by transformers' `Qwen3ForCausalLM`."""

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes an SDAR model, of experts or dense."""
        names = {str(config.get("model_type")), *map(str, config.get("architectures") or ())}
        return bool(names & {"sdar", "SDARForCausalLM", "sdar_moe", "SDARMoeForCausalLM"})

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        name: str,
        config: Mapping[str, Any],
        dtype: torch.dtype | str = "auto",
        device_map: Any = None,
        block_length: int | None = None,
        attn_implementation: str = "sdpa",
        layout: Layout = "tree",
    ) -> SDAR:
        """The target in `folder` with its `config.json`; name and options as for `spotkit.loading.load`.

        Raises:
            CheckpointError: a file is missing or damaged, or the checkpoint is of a kind not supported.
        """
        from transformers import Qwen3ForCausalLM

        native, sizes = _native(folder, config)
        tokenizer = load_tokenizer(folder)
        spec = _spec(folder, config, tokenizer, block_length)
        spec = attrs.evolve(spec, name=name, fingerprint=fingerprint(folder, sizes))
        model = load_model(
            Qwen3ForCausalLM,
            folder,
            config=native,
            dtype=dtype,
            device_map=device_map,
            attn_implementation=attn_implementation,
        )
        return cls(spec=spec, model=model, tokenizer=tokenizer, layout=layout)


def _native(folder: Path, config: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The config of transformers' own class with the sizes of `config`, and these sizes."""
    from transformers import Qwen3Config

    if config.get("num_experts") or "moe" in f"{config.get('model_type')} {config.get('architectures')}".lower():
        raise CheckpointError(f"{folder}: SDAR with experts is not supported; use a dense SDAR or TraDo checkpoint")
    if config.get("use_sliding_window"):
        raise CheckpointError(
            f"{folder}: config.json has use_sliding_window=true, which SDAR does not; set it to false"
        )
    rope = _rope(config)
    missing = [name for name in _SIZES if config.get(name) is None]
    missing += ["rope_theta"] if rope.get("rope_theta") is None else []
    if missing:
        raise CheckpointError(f"{folder}: config.json lacks {', '.join(missing)}; download it again")
    sizes = {name: config[name] for name in _SIZES} | {"rope_parameters": rope}
    sizes |= {name: config.get(name, value) for name, value in _CHOICES.items()}
    try:
        return Qwen3Config(**sizes, dtype=config.get("dtype", config.get("torch_dtype"))), sizes
    except Exception as error:
        raise CheckpointError(f"{folder}: config.json does not fit Qwen3 ({error})") from error


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Position encoding as transformers 5 has it; before, it was `rope_theta` and `rope_scaling`."""
    if config.get("rope_parameters"):
        return dict(config["rope_parameters"])
    scaling = dict(config.get("rope_scaling") or {})
    return {"rope_type": scaling.pop("type", "default"), "rope_theta": config.get("rope_theta"), **scaling}


def _spec(folder: Path, config: Mapping[str, Any], tokenizer: Any, block_length: int | None) -> TargetSpec:
    generation = read_json(folder / "generation_config.json")
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    eos_ids = (eos,) if isinstance(eos, int) else tuple(eos or ())
    mask_id = config.get("mask_token_id", getattr(tokenizer, "mask_token_id", None))
    vocab_size = config["vocab_size"]
    if not isinstance(mask_id, int) or not 0 <= mask_id < vocab_size or mask_id in eos_ids:
        raise CheckpointError(
            f"{folder}: config.json has mask_token_id={mask_id!r}; give the mask token's id, within the "
            f"{vocab_size} of the vocabulary and none of the end tokens {list(eos_ids)}"
        )
    pad = generation.get("pad_token_id", config.get("pad_token_id"))
    known = known_ids(tokenizer)
    return TargetSpec(
        name=folder.name,
        vocab_size=vocab_size,
        mask_id=mask_id,
        eos_ids=eos_ids,
        pad_id=pad if isinstance(pad, int) and 0 <= pad < vocab_size else 0,
        block_length=config.get("block_size") or _BLOCK_LENGTH if block_length is None else block_length,
        token_limit=known if known is not None and known < vocab_size else None,
    )
