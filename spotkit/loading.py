"""Loading a target from a checkpoint folder or the Hugging Face hub, whatever its family."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs
import torch

from spotkit import embedded
from spotkit.errors import CheckpointError, ConfigError, PartError, UnknownNameError
from spotkit.options import LoadOptions
from spotkit.protocols import Target
from spotkit.registry import ADAPTERS

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = ["*.json", "*.jinja", "*.safetensors", "*.txt"]


class Adapter(Protocol):
    """A model family: what stands behind an entry point of group `spotkit.adapters`, usually a class."""

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Whether a checkpoint with this `config.json` is of the family."""
        ...

    def load(self, folder: Path, *, config: Mapping[str, Any], options: LoadOptions) -> Target:
        """The target in `folder` with its `config.json`; the options have been checked."""
        ...


def load(
    source: str | Path,
    *,
    adapter: str | None = None,
    device_map: Any = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    offload_folder: str | Path | None = None,
    dtype: torch.dtype | str | None = None,
    quantization_config: Any = None,
    block_length: int | None = None,
    attn_implementation: str = "sdpa",
    layout: Literal["tree", "batch"] = "tree",
    cache: str | None = None,
    span: int | None = None,
    mask_id: int | None = None,
    local_files_only: bool = False,
) -> Target:
    """Loads a target.

    No code of the checkpoint is run: the weights go into transformers' own classes.

    Args:
        source: a folder, a hub id ("owner/name"), or "embedded" for the model that ships with spotkit.
        adapter: the model family; by default the adapter that knows the checkpoint's `config.json`.
        device_map: where the weights go: None (CPU), a device, or what accelerate takes ("auto", or a mapping of
            module names to devices, "cpu" or "disk").
        max_memory: with `device_map="auto"`, the most that each device may hold: `{0: "20GiB", "cpu": "60GiB"}`.
        offload_folder: where weights go that `device_map` puts on "disk".
        dtype: "float32", "bfloat16", "float16", "float64" or a torch type; "auto" keeps the checkpoint's. None
            means "auto", and float32 for the embedded model: most CPUs are slow in bfloat16.
        quantization_config: one of transformers' quantisation configs, or a mapping of its fields; that of a
            quantised checkpoint is in its `config.json` and need not be given.
        block_length: None takes the checkpoint's.
        attn_implementation: "sdpa" or "eager".
        layout: how the states of a pass are laid out: "tree" or "batch"; see `spotkit.adapters.base`.
        cache: "none", "exact", "prefix", "dual" or "block", as far as the family has it; None takes the exact way.
            "prefix" and "dual" are Fast-dLLM's approximations for bidirectional models, "block" that of
            Fast-dLLM v2 inside a block.
        span: positions per part of a block, for `cache="block"`.
        mask_id: id of the mask token; None takes the checkpoint's, or the one that its family is known to use.
        local_files_only: never ask the hub, take what has been downloaded (as does `HF_HUB_OFFLINE=1`).

    Raises:
        ConfigError: an option with a value that it cannot have, or one that would not be used.
        CheckpointError: the checkpoint is missing, incomplete or damaged.
        UnknownNameError: no installed adapter knows the model.
        PartError: the adapter returned something else than a target.
    """
    if dtype is None and source == "embedded":
        dtype = torch.float32
    options = LoadOptions(
        name=name_of(source),
        dtype=dtype,
        device_map=device_map,
        max_memory=max_memory,
        offload_folder=offload_folder,
        quantization_config=quantization_config,
        block_length=block_length,
        attn_implementation=attn_implementation,
        layout=layout,
        cache=cache,
        span=span,
        mask_id=mask_id,
    )
    found = find(source, adapter=adapter, local_files_only=local_files_only)
    target = found.adapter.load(found.folder, config=found.config, options=options)
    if not isinstance(target, Target):
        raise PartError(f"adapter.load: {found.adapter!r} must return a target, got {type(target).__name__}")
    return target


@attrs.frozen
class Found:
    """A checkpoint whose files are here, and the adapter that knows it."""

    folder: Path
    config: Mapping[str, Any]
    adapter_name: str
    adapter: Any


def find(source: str | Path, *, adapter: str | None = None, local_files_only: bool = False) -> Found:
    """The checkpoint that `source` names, downloaded if need be; see `load`.

    Raises:
        ConfigError, CheckpointError, UnknownNameError: as `load`.
    """
    folder = _folder(source, ["config.json"], local_files_only)
    config = _config(folder)
    name, family = adapter_for(config, folder, adapter)
    if not _is_local(source):
        folder = _folder(source, _FILES, local_files_only)
    return Found(folder, config, name, family)


def name_of(source: str | Path) -> str:
    """What the target of a source is called.

    Raises:
        ConfigError: it is neither text nor a path.
    """
    if not isinstance(source, (str, Path)):
        raise ConfigError(f"source={source!r}: give a folder, a hub id like owner/name, or 'embedded'")
    return str(source) if source == "embedded" or not _is_local(source) else Path(source).resolve().name


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file.

    Raises:
        CheckpointError: the file holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds {type(content).__name__}, not an object; download it again")
    return content


def tokenizer_of(target: Target) -> Any:
    """The target's tokenizer.

    Raises:
        CheckpointError: it has none.
    """
    tokenizer = getattr(target, "tokenizer", None)
    if tokenizer is None:
        raise CheckpointError(
            f"tokenizer: {target.spec.name} came without one, so it takes and gives token ids only; put the "
            "tokenizer.json of its checkpoint into its folder"
        )
    return tokenizer


def _is_local(source: str | Path) -> bool:
    return source == "embedded" or Path(source).is_dir()


def _folder(source: str | Path, patterns: list[str], local_files_only: bool) -> Path:
    """The folder that holds the checkpoint's files, downloaded if it is on the hub."""
    if _is_local(source):
        return embedded.path() if source == "embedded" else Path(source)
    if not isinstance(source, str) or not _HUB_ID.fullmatch(source):
        raise CheckpointError(f"{source}: no such folder; give a checkpoint's folder or a hub id like owner/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=patterns, local_files_only=local_files_only))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{source}: neither a folder nor to be had from the hub ({error}); check the name, the network and the "
            f"access rights, or download it first with `hf download {source}`"
        ) from error


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder}: has no config.json; give the folder of a checkpoint")
    return read_json(path)


def adapter_for(config: Mapping[str, Any], origin: str | Path, name: str | None = None) -> tuple[str, Any]:
    """Name and adapter of the family that a config belongs to, or of the given name.

    Raises:
        ConfigError: several adapters know it.
        UnknownNameError: none does.
    """
    if name is not None:
        return name, ADAPTERS.get(name)
    matching = {n: part for n, part in ADAPTERS.working().items() if _knows(n, part, config)}
    if len(matching) > 1:
        raise ConfigError(f"adapter=None: {', '.join(matching)} all know {origin}; name one of them")
    if not matching:
        raise UnknownNameError(
            f"model_type={config.get('model_type')!r} (architectures {config.get('architectures')!r}) of {origin}: "
            f"no adapter knows it; if one of them can run it, say which with adapter=. {ADAPTERS.summary()}"
        )
    return next(iter(matching.items()))


def _knows(name: str, adapter: Any, config: Mapping[str, Any]) -> bool:
    """Whether the adapter knows the checkpoint; one that fails to say does not, and hinders no other."""
    try:
        return bool(adapter.matches(config))
    except Exception as error:
        ADAPTERS.failures[name] = f"matches() raised {type(error).__name__}: {error}"
        return False
