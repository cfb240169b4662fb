"""From a checkpoint's `config.json` to the config of transformers' own class, and to a `TargetSpec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from spotkit.errors import CheckpointError, ConfigError
from spotkit.loading import read_json
from spotkit.options import LoadOptions
from spotkit.types import TargetSpec

from .files import known_ids

_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("rms_norm_eps", "routed_scaling_factor"), (int, float)),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "norm_topk_prob", "use_qk_norm"), (bool,)),
    "hidden_act": (str,),
    "rope_parameters": (dict,),
}
"""What sizes are by transformers' names; all others are integers."""
_MAY_BE_ZERO = ("first_k_dense_replace", "n_shared_experts")


def names_of(config: Mapping[str, Any]) -> frozenset[str]:
    """What a `config.json` calls its model: the architectures and the model type."""
    listed = config.get("architectures")
    names = listed if isinstance(listed, list) else [listed]
    return frozenset(name for name in (*names, config.get("model_type")) if isinstance(name, str))


def same(*names: str) -> dict[str, str]:
    """Entries that the checkpoint and transformers call the same."""
    return dict(zip(names, names, strict=True))


def sizes_of(
    folder: Path, config: Mapping[str, Any], *, required: Mapping[str, str], choices: Mapping[str, tuple[str, Any]]
) -> dict[str, Any]:
    """Sizes by transformers' names.

    Args:
        folder: for the messages.
        config: the checkpoint's `config.json`.
        required: transformers' names and what the checkpoint calls them.
        choices: the same, with the value of a checkpoint that does not say.

    Raises:
        CheckpointError: an entry is missing or has a value of the wrong type.
    """
    rope = rope_of(folder, config)
    missing = [theirs for theirs in required.values() if config.get(theirs) is None]
    missing += ["rope_theta"] if rope.get("rope_theta") is None else []
    if missing:
        raise CheckpointError(f"{folder}: config.json lacks {', '.join(missing)}; download it again")
    sizes = {name: config[theirs] for name, theirs in required.items()} | {"rope_parameters": rope}
    for name, (theirs, value) in choices.items():
        sizes[name] = value if config.get(theirs) is None else config[theirs]
    called = {**required, **{name: theirs for name, (theirs, _) in choices.items()}}
    wrong = [f"{called.get(name, name)}={value!r}" for name, value in sizes.items() if not _fits(name, value)]
    if wrong:
        raise CheckpointError(f"{folder}: config.json has {', '.join(wrong)}, which no model has; download it again")
    return sizes


def _fits(name: str, value: object) -> bool:
    kinds = _KINDS.get(name, (int,))
    if not isinstance(value, kinds) or isinstance(value, bool) != (bool in kinds):
        return False
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    return value > 0 or (value == 0 and name in _MAY_BE_ZERO)


def native_config(kind: Any, folder: Path, config: Mapping[str, Any], sizes: Mapping[str, Any]) -> Any:
    """The config of transformers' class `kind` with these sizes.

    Raises:
        CheckpointError: the sizes do not fit the class.
    """
    try:
        quantised = config.get("quantization_config")
        more = {} if quantised is None else {"quantization_config": quantised}
        return kind(**sizes, **more, dtype=config.get("dtype", config.get("torch_dtype")))
    except Exception as error:
        name = kind.__name__.removesuffix("Config")
        raise CheckpointError(f"{folder}: config.json does not fit {name} ({error})") from error


def refuse(folder: Path, config: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuses a checkpoint whose `config.json` asks for something that the native class would not do.

    Args:
        folder: for the messages.
        config: the checkpoint's `config.json`; an absent entry or null is taken as expected.
        expected: the only value that each entry may have.

    Raises:
        CheckpointError: an entry has another value.
    """
    wrong = {k: config[k] for k, v in expected.items() if config.get(k) is not None and config[k] != v}
    if wrong:
        texts = [f"{name}={value!r} (must be {expected[name]!r})" for name, value in wrong.items()]
        raise CheckpointError(
            f"{folder}: config.json has {', '.join(texts)}, which transformers' own class does not run; use another "
            "checkpoint of the family"
        )


def rope_of(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Position encoding as transformers 5 has it; before, it was `rope_theta` and `rope_scaling`.

    Raises:
        CheckpointError: something else than mappings.
    """
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(name) or {}, Mapping):
            raise CheckpointError(
                f"{folder}: config.json has {name}={config[name]!r}, not an object; download it again"
            )
    if config.get("rope_parameters"):
        return dict(config["rope_parameters"])
    scaling = dict(config.get("rope_scaling") or {})
    return {"rope_type": scaling.pop("type", "default"), "rope_theta": config.get("rope_theta"), **scaling}


def generation_of(folder: Path) -> Mapping[str, Any]:
    """The checkpoint's `generation_config.json`, or nothing.

    Raises:
        CheckpointError: the file holds something else than an object.
    """
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def spec_of(
    origin: str | Path,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: Any,
    *,
    sizes: Mapping[str, Any],
    options: LoadOptions,
    block_length: int | None,
    mask_id: int | None,
    full: bool,
    cache: str,
) -> TargetSpec:
    """The spec of a model.

    Args:
        origin: for the messages.
        config: its `config.json`.
        generation: its `generation_config.json`.
        tokenizer: its tokenizer, or None.
        sizes: `vocab_size` and `max_position_embeddings`.
        options: how it is to be loaded; they go before all else.
        block_length: the family's; None if the answer is one block.
        mask_id: what the family has where neither config nor tokenizer says.
        full: whether every position sees all others.
        cache: what the family calls its way of caching.

    Raises:
        CheckpointError: there is no sensible mask id or end token.
    """
    vocab_size: int = sizes["vocab_size"]
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    eos_ids = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    if not all(_is_id(token, vocab_size) for token in eos_ids):
        raise CheckpointError(
            f"{origin}: eos_token_id={eos!r}; give token ids within the {vocab_size} of the vocabulary, in "
            "generation_config.json or config.json"
        )
    known_masks = (options.mask_id, config.get("mask_token_id"), getattr(tokenizer, "mask_token_id", None), mask_id)
    mask = next((m for m in known_masks if m is not None), None)
    if not _is_id(mask, vocab_size) or mask in eos_ids:
        raise CheckpointError(
            f"{origin}: mask_token_id={mask!r}; give the mask token's id, in config.json or as mask_id when loading, "
            f"within the {vocab_size} of the vocabulary and none of the end tokens {list(eos_ids)}"
        )
    pad = generation.get("pad_token_id", config.get("pad_token_id"))
    known = known_ids(tokenizer)
    length = block_length if options.block_length is None else options.block_length
    return TargetSpec(
        name=options.name,
        vocab_size=vocab_size,
        mask_id=mask,
        eos_ids=eos_ids,
        pad_id=pad if _is_id(pad, vocab_size) else 0,
        block_length=sizes["max_position_embeddings"] if length is None else length,
        block_grid=("answer" if length is None else "prompt") if full else "absolute",
        attention="full" if full else "block_causal",
        cache="exact" if cache == "exact" else "none" if cache == "none" else "approximate",
        variant=cache,
        max_length=sizes["max_position_embeddings"],
        token_limit=known if known is not None and known < vocab_size else None,
    )


def _is_id(value: object, vocab_size: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size


def cache_of(cache: str | None, known: Sequence[str], *, name: str) -> str:
    """The cache asked for, or the first known one.

    Raises:
        ConfigError: the family does not have it.
    """
    if cache is None:
        return known[0]
    if cache not in known:
        raise ConfigError(f"cache={cache!r}: {name} has {', '.join(known)}; choose one of these, or None")
    return cache
