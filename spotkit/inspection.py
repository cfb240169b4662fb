"""What can be said of a checkpoint before its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import attrs

from spotkit.errors import PartError
from spotkit.loading import find, name_of
from spotkit.options import LoadOptions
from spotkit.presets import Preset
from spotkit.types import TargetSpec


@attrs.frozen
class Inspection:
    """What a checkpoint is, and what it lacks.

    Attributes:
        adapter: the adapter that knows it.
        folder: where its files lie.
        model: transformers' class that runs it.
        sizes: what that class is made of, by transformers' names.
        parameters: number of weights; None if config and weights do not fit each other.
        files: number of weight files.
        stored: bytes of the weights in the files, by type of number.
        spec: the target it makes; None if that cannot be said.
        caches: the caches it can have, the default first.
        presets: how its official generator decodes, the default first.
        tokenizer: whether it has one.
        chat_template: whether that has a chat template.
        faults: what keeps it from being loaded.
    """

    adapter: str
    folder: str
    model: str = ""
    sizes: Mapping[str, Any] = attrs.field(factory=dict)
    parameters: int | None = None
    files: int = 0
    stored: Mapping[str, int] = attrs.field(factory=dict)
    spec: TargetSpec | None = None
    caches: tuple[str, ...] = ()
    presets: Mapping[str, Preset] = attrs.field(factory=dict)
    tokenizer: bool = False
    chat_template: bool = False
    faults: tuple[str, ...] = ()

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes of all weights by type of number they may be loaded in."""
        widths = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
        return {} if self.parameters is None else {name: self.parameters * width for name, width in widths.items()}


@runtime_checkable
class Inspector(Protocol):
    """An adapter that can tell what a checkpoint is without loading it."""

    def inspect(self, folder: Path, *, config: Mapping[str, Any], options: LoadOptions) -> Inspection:
        """What the checkpoint in `folder` is; faults are told, not raised."""
        ...


def inspect(
    source: str | Path,
    *,
    adapter: str | None = None,
    block_length: int | None = None,
    cache: str | None = None,
    mask_id: int | None = None,
    local_files_only: bool = False,
) -> Inspection:
    """What a checkpoint is, and what it lacks; the options are those of `spotkit.load`.

    Of a hub id everything is downloaded that loading it would need.

    Raises:
        ConfigError, CheckpointError, UnknownNameError: as `spotkit.load`, if no adapter can be found for it.
        PartError: its adapter cannot tell.
    """
    options = LoadOptions(name_of(source), block_length=block_length, cache=cache, mask_id=mask_id)
    found = find(source, adapter=adapter, local_files_only=local_files_only)
    if not isinstance(found.adapter, Inspector):
        raise PartError(f"adapter={found.adapter_name!r}: has no inspect(); load the checkpoint to learn more")
    told = found.adapter.inspect(found.folder, config=found.config, options=options)
    return attrs.evolve(told, adapter=found.adapter_name)
