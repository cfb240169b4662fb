"""Names for what was made from given values, so that nothing is read again under other settings."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import types
from collections.abc import Mapping
from pathlib import PurePath

import attrs
import torch
from torch import Tensor

from spotkit.errors import ConfigError

_PLAIN = (bool, int, float, str, type(None))


def digest(*values: object) -> str:
    """Twelve characters that differ when any value does.

    Raises:
        ConfigError: an object whose fields cannot be told.
    """
    return hashlib.sha256(json.dumps([_plain(v) for v in values]).encode()).hexdigest()[:12]


def _plain(value: object) -> object:
    """A value as its type and fields, down to what JSON knows."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(json.dumps(_plain(v)) for v in value)}
    if isinstance(value, Mapping):
        return [[_plain(k), _plain(v)] for k, v in value.items()]
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return [str(value.dtype), list(value.shape), hashlib.sha256(content).hexdigest()]
    if isinstance(value, (torch.dtype, torch.device, PurePath)):
        return str(value)
    if isinstance(value, enum.Enum):
        return [kind.__qualname__, value.name]
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, functools.partial):
        return [_plain(value.func), _plain(value.args), _plain(value.keywords)]
    return {"type": kind.__qualname__, **{name: _plain(v) for name, v in _fields(value).items()}}


def _fields(value: object) -> dict[str, object]:
    kind = type(value)
    if attrs.has(kind):
        return {f.name: getattr(value, f.name) for f in attrs.fields(kind)}
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if hasattr(value, "__dict__"):
        return dict(vars(value))
    raise ConfigError(f"{value!r}: what it is made of cannot be told; write it as an attrs.frozen class")
