"""Reading a checkpoint folder in the Hugging Face layout, with every fault reported."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from spotkit.errors import CheckpointError, ConfigError
from spotkit.loading import read_json
from spotkit.options import LoadOptions

_SAMPLE = 64  # bytes of every tensor that go into the fingerprint
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights.

    Raises:
        CheckpointError: there are none, or one that the index names is missing.
    """
    path = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    content: dict[str, Any] = {"metadata": {}}
    if path.is_file():
        content = read_json(path)
        index = content.get("weight_map")
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
    if not isinstance(content.get("metadata"), dict):
        raise CheckpointError(f'{path}: has no metadata, which transformers reads; add "metadata": {{}} to it')
    return [folder / name for name in names]


@attrs.frozen(eq=False)
class Build:
    """A checkpoint's model, as transformers builds it.

    Attributes:
        kind: transformers' class.
        config: its config.
        sizes: what that was made of, by transformers' names.
        names: patterns of the checkpoint's names of weights, and transformers' names for them; None if the same.
        convert: for checkpoints that also cut their weights otherwise: a weight under transformers' names.
    """

    kind: Any
    config: Any
    sizes: Mapping[str, Any]
    names: Mapping[str, str] | None = None
    convert: Callable[[str, Tensor], Iterable[tuple[str, Tensor]]] | None = None

    def renamed(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Weights as `convert` gives them."""
        if self.convert is None:
            return dict(weights)
        return dict(pair for name, weight in weights for pair in self.convert(name, weight))


def headers(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and shape, as a tensor without numbers, of every weight; only headers are read.

    Raises:
        CheckpointError: the weights are missing or damaged.
    """
    for name, kind, shape, _ in _entries(folder):
        if kind not in _TYPES:
            raise CheckpointError(f"{folder}: {name} is of type {kind}; known are {', '.join(_TYPES)}")
        yield name, torch.empty(shape, dtype=_TYPES[kind], device="meta")


def fingerprint(folder: Path, sizes: Mapping[str, Any]) -> str:
    """Sixteen hex digits that identify a checkpoint: its sizes, every tensor's name, type, shape and first bytes.

    It depends on the files alone: not on the shards they are cut into, nor on how they are loaded.

    Raises:
        CheckpointError: the weights are missing or damaged.
    """
    digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode())
    tensors = {name: json.dumps([name, kind, shape]).encode() + data for name, kind, shape, data in _entries(folder)}
    for name in sorted(tensors):
        digest.update(tensors[name])
    return digest.hexdigest()[:16]


def _entries(folder: Path) -> Iterator[tuple[str, str, list[int], bytes]]:
    """Name, type, shape and first bytes of every weight."""
    for path in weight_files(folder):
        try:
            with path.open("rb") as file:
                start = 8 + int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(start - 8, path.stat().st_size)))
                header.pop("__metadata__", None)
                for name, entry in header.items():
                    begin, end = entry["data_offsets"]
                    file.seek(start + begin)
                    yield name, entry["dtype"], entry["shape"], file.read(min(_SAMPLE, end - begin))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path}: not a complete safetensors file ({error}); download it again") from error


def load_model(build: Build, folder: Path, *, options: LoadOptions) -> Any:
    """The transformers model in evaluation mode, with exactly the weights of the checkpoint.

    Raises:
        ConfigError: what the options ask for needs a package that is not installed.
        CheckpointError: a weight is missing, left over or of another shape than the config says.
    """
    files = weight_files(folder)
    weights = None
    if build.convert is not None:  # mapped into memory, not read
        try:
            weights = build.renamed(pair for file in files for pair in load_file(file).items())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder}: the weights cannot be read ({error}); download them again") from error
    return _fill(build, folder, weights, **options.placement)


def outline(build: Build, weights: Mapping[str, Tensor], *, origin: Path) -> Any:
    """The transformers model without numbers, filled with `weights` on the meta device just as real ones would be.

    Raises:
        CheckpointError: a weight is missing, left over or of another shape than the config says.
    """
    return _fill(build, origin, build.renamed(weights.items()), dtype=torch.bfloat16, device_map="meta")


def _fill(build: Build, folder: Path, weights: Mapping[str, Tensor] | None, **options: Any) -> Any:
    """The model from `weights`, or if None from the files, with every fault reported."""
    with torch.random.fork_rng(devices=[]):  # weights that are missing would be drawn from the global generator
        try:
            model, info = build.kind.from_pretrained(
                folder if weights is None else None,
                state_dict=weights,
                config=build.config,
                use_safetensors=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                key_mapping=build.names,
                **options,
            )
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            if isinstance(error, ImportError):
                raise ConfigError(f"{folder}: loading it needs a package that is not installed ({error})") from error
            odd = "; ".join(odd_ones(headers(folder) if weights is None else weights.items()))
            raise CheckpointError(f"{folder}: the weights cannot be loaded ({odd or error})") from error
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


def odd_ones(weights: Iterable[tuple[str, Tensor]]) -> Iterator[str]:
    """What is odd about experts, which transformers stacks: one that is missing, or unlike the others in shape."""
    kinds: dict[str, dict[str, list[int]]] = {}
    for name, weight in weights:
        if ".experts." in name:
            kinds.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.*.", name), {})[name] = list(weight.shape)
    most = max((len(found) for found in kinds.values()), default=0)
    for kind, found in sorted(kinds.items()):
        shapes = [str(shape) for shape in found.values()]
        usual = max(set(shapes), key=shapes.count)
        yield from (f"{name} is {shape}, the others {usual}" for name, shape in found.items() if str(shape) != usual)
        lost = [kind.replace("*", str(i)) for i in range(most) if kind.replace("*", str(i)) not in found]
        if lost:
            yield f"missing {_names(lost)}"


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
