"""How a checkpoint is to be loaded, checked before any of its files is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import torch
from attrs.validators import optional

from spotkit.errors import ConfigError
from spotkit.fields import instance, one_of, positive

_DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
_PLACEMENTS = ("auto", "balanced", "balanced_low_0", "sequential")
CACHES = ("none", "exact", "prefix", "dual", "block")
"""Ways of caching that families have."""


def _dtype(value: torch.dtype | str | None) -> torch.dtype | str:
    named = "auto" if value is None else str(value).removeprefix("torch.")
    if named not in _DTYPES:
        raise ConfigError(f"dtype={named!r}: choose one of {', '.join(_DTYPES)}")
    return "auto" if named == "auto" else getattr(torch, named)


def _placement(_: object, field: object, value: Any) -> None:
    """Checks a device; what accelerate takes besides goes through."""
    if not isinstance(value, str) or value in _PLACEMENTS:
        return
    try:
        device = torch.device(value)
    except RuntimeError as error:
        raise ConfigError(
            f"device_map={value!r}: give a device (cpu, cuda, cuda:0, mps), one of "
            f"{', '.join(_PLACEMENTS)}, or a mapping of module names to devices"
        ) from error
    if device.type == "meta":
        raise ConfigError(f"device_map={value!r}: weights there hold no numbers; use cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device_map={value!r}: this torch sees no CUDA device; use cpu")


def _memory(_: object, field: object, value: Any) -> None:
    whole = isinstance(value, Mapping) and all(
        isinstance(place, (int, str)) and isinstance(most, (int, str)) and not isinstance(most, bool)
        for place, most in value.items()
    )
    if value is not None and not whole:
        raise ConfigError(
            f"max_memory={value!r}: give a mapping of devices to bytes or sizes, as in {{0: '20GiB', 'cpu': '60GiB'}}"
        )


def _quantization(_: object, field: object, value: Any) -> None:
    if value is not None and not isinstance(value, Mapping) and not hasattr(value, "quant_method"):
        raise ConfigError(
            f"quantization_config={value!r}: give one of transformers' quantisation configs, or a mapping like the "
            "entry of that name in a config.json"
        )


def _token(_: object, field: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ConfigError(f"mask_id={value!r}: give a token id, or None for the checkpoint's")


@attrs.frozen
class LoadOptions:
    """How an adapter is to load a checkpoint; see `spotkit.load` for all but the first.

    Attributes:
        name: what the target is called in its spec.

    Raises:
        ConfigError: a value that the option cannot have, or an option that would not be used.
    """

    name: str
    dtype: torch.dtype | str = attrs.field(default="auto", converter=_dtype)
    device_map: Any = attrs.field(default=None, validator=_placement)
    max_memory: Mapping[int | str, int | str] | None = attrs.field(default=None, validator=_memory)
    offload_folder: str | Path | None = attrs.field(default=None, validator=instance(str, Path, type(None)))
    quantization_config: Any = attrs.field(default=None, validator=_quantization)
    block_length: int | None = attrs.field(default=None, validator=optional(positive))
    attn_implementation: str = attrs.field(default="sdpa", validator=one_of("sdpa", "eager"))
    layout: Literal["tree", "batch"] = attrs.field(default="tree", validator=one_of("tree", "batch"))
    cache: str | None = attrs.field(default=None, validator=optional(one_of(*CACHES)))
    span: int | None = attrs.field(default=None, validator=optional(positive))
    mask_id: int | None = attrs.field(default=None, validator=_token)

    def __attrs_post_init__(self) -> None:
        for name in ("max_memory", "offload_folder"):
            if getattr(self, name) is not None and self.device_map is None:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}: only device_map makes use of it; give 'auto', say"
                )

        if self.span is not None and self.cache != "block":
            raise ConfigError(f"span={self.span}: only cache='block' makes use of it; give that too, or leave it out")

    @property
    def placement(self) -> dict[str, Any]:
        """What transformers' `from_pretrained` takes of them."""
        given = {name: getattr(self, name) for name in ("max_memory", "offload_folder", "quantization_config")}
        return {
            "dtype": self.dtype,
            "device_map": self.device_map,
            "attn_implementation": self.attn_implementation,
            **{name: value for name, value in given.items() if value is not None},
        }
