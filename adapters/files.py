"""Reading a checkpoint folder in the Hugging Face layout, with every fault reported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from spotkit.errors import CheckpointError
from spotkit.loading import LoadOptions, read_json

_SAMPLE = 64  # bytes of every tensor that go into the fingerprint


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights.

    Raises:
        CheckpointError: there are none, or one that the index names is missing.
    """
    path = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if path.is_file():
        index = read_json(path).get("weight_map")
        files = list(index.values()) if isinstance(index, dict) else []
        if not files or not all(isinstance(name, str) and name.endswith(".safetensors") for name in files):
            raise CheckpointError(f"{path}: weight_map names no safetensors files; download it again")
        names = sorted(set(files))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: weights missing ({', '.join(missing)}); download the whole checkpoint, or convert it to "
            "safetensors if it has another format"
        )
    return [folder / name for name in names]


def fingerprint(folder: Path, sizes: Mapping[str, Any]) -> str:
    """Sixteen hex digits that identify a checkpoint: its sizes, every tensor's name, type, shape and first bytes.

    It depends on the files alone: not on the shards they are cut into, nor on how they are loaded.

    Raises:
        CheckpointError: the weights are missing or damaged.
    """
    digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode())
    tensors: dict[str, bytes] = {}
    for path in weight_files(folder):
        try:
            with path.open("rb") as file:
                start = 8 + int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(start - 8, path.stat().st_size)))
                header.pop("__metadata__", None)
                for name, entry in header.items():
                    begin, end = entry["data_offsets"]
                    file.seek(start + begin)
                    label = json.dumps([name, entry["dtype"], entry["shape"]]).encode()
                    tensors[name] = label + file.read(min(_SAMPLE, end - begin))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path}: not a complete safetensors file ({error}); download it again") from error
    for name in sorted(tensors):
        digest.update(tensors[name])
    return digest.hexdigest()[:16]


def load_model(
    kind: Any,
    folder: Path,
    *,
    config: Any,
    options: LoadOptions,
    names: Mapping[str, str] | None = None,
    convert: Callable[[str, Tensor], Iterable[tuple[str, Tensor]]] | None = None,
) -> Any:
    """The transformers model of class `kind` in evaluation mode, with exactly the weights of the checkpoint.

    `names` are patterns of the checkpoint's names of weights, and transformers' names for them; `convert` is for
    checkpoints that also cut their weights otherwise.

    Raises:
        CheckpointError: a weight is missing, left over or of another shape than the config says.
    """
    files = weight_files(folder)
    with torch.random.fork_rng(devices=[]):  # weights that are missing would be drawn from the global generator
        try:
            weights = None
            if convert is not None:  # mapped into memory, not read
                weights = dict(
                    pair for file in files for name, w in load_file(file).items() for pair in convert(name, w)
                )
            model, info = kind.from_pretrained(
                folder if weights is None else None,
                state_dict=weights,
                config=config,
                dtype=options.dtype,
                device_map=options.device_map,
                attn_implementation=options.attn_implementation,
                use_safetensors=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                key_mapping=names,
            )
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise CheckpointError(f"{folder}: the weights cannot be loaded ({error})") from error
    faults = [
        f"{what} {_names(info[key])}"
        for key, what in (
            ("missing_keys", "missing"),
            ("unexpected_keys", "not in the model"),
            ("mismatched_keys", "of another shape"),
        )
        if info[key]
    ]
    if faults:
        raise CheckpointError(
            f"{folder}: weights {'; '.join(faults)}; config.json and the weights must be of one model, so download "
            "both again"
        )
    return model.eval()


def _names(keys: Sequence[Any]) -> str:
    """Names of weights, with both shapes where they differ; the first eight."""
    texts = sorted(
        f"{key[0]} ({list(key[1])} in the file, {list(key[2])} in the model)" if isinstance(key, tuple) else str(key)
        for key in keys
    )
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's tokenizer, or None if it has none. No code of the checkpoint is run.

    Raises:
        CheckpointError: the tokenizer's files are damaged.
    """
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    kind: Any
    if (folder / "tokenizer.json").is_file():
        kind = PreTrainedTokenizerFast
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        kind = Qwen2Tokenizer
    else:
        return None
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise CheckpointError(f"{folder}: the tokenizer cannot be read ({error}); download it again") from error


def known_ids(tokenizer: Any) -> int | None:
    """One more than the highest id that the tokenizer knows; None without a tokenizer."""
    return None if tokenizer is None else max(tokenizer.get_vocab().values()) + 1
