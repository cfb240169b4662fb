"""Exact speculative decoding of diffusion language models.

The names below are imported when they are first used, so that `import spotkit` is cheap.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotkit.acceptance import StateEquality
    from spotkit.adapting import adapt
    from spotkit.build import strategy
    from spotkit.errors import (
        CheckpointError,
        ConfigError,
        DraftError,
        MismatchError,
        NonFiniteLogitsError,
        PartError,
        SpotkitError,
        StalledError,
        UnknownNameError,
    )
    from spotkit.inspection import inspect
    from spotkit.loading import load
    from spotkit.logprobs import Sampling
    from spotkit.loop import decode, stream
    from spotkit.presets import Preset, presets_of
    from spotkit.results import Result, Stats
    from spotkit.rules import EntropyBound, Factor, Ordered, Sequential, Static, Threshold
    from spotkit.sampler import Sampler
    from spotkit.settings import DecodeConfig, Strategy
    from spotkit.tape import Tape
    from spotkit.types import Commit, Draft, Event, Evidence, Guarantee, State, TargetSpec

    __version__: str

_HOME = {
    "acceptance": ("StateEquality",),
    "adapting": ("adapt",),
    "build": ("strategy",),
    "errors": (
        "CheckpointError",
        "ConfigError",
        "DraftError",
        "MismatchError",
        "NonFiniteLogitsError",
        "PartError",
        "SpotkitError",
        "StalledError",
        "UnknownNameError",
    ),
    "inspection": ("inspect",),
    "loading": ("load",),
    "logprobs": ("Sampling",),
    "loop": ("decode", "stream"),
    "presets": ("Preset", "presets_of"),
    "results": ("Result", "Stats"),
    "rules": ("EntropyBound", "Factor", "Ordered", "Sequential", "Static", "Threshold"),
    "sampler": ("Sampler",),
    "settings": ("DecodeConfig", "Strategy"),
    "tape": ("Tape",),
    "types": ("Commit", "Draft", "Event", "Evidence", "Guarantee", "State", "TargetSpec"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CheckpointError",
    "Commit",
    "ConfigError",
    "DecodeConfig",
    "Draft",
    "DraftError",
    "EntropyBound",
    "Event",
    "Evidence",
    "Factor",
    "Guarantee",
    "MismatchError",
    "NonFiniteLogitsError",
    "Ordered",
    "PartError",
    "Preset",
    "Result",
    "Sampler",
    "Sampling",
    "Sequential",
    "SpotkitError",
    "StalledError",
    "State",
    "StateEquality",
    "Static",
    "Stats",
    "Strategy",
    "Tape",
    "TargetSpec",
    "Threshold",
    "UnknownNameError",
    "__version__",
    "adapt",
    "decode",
    "inspect",
    "load",
    "presets_of",
    "strategy",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.metadata.version("spotkit")
    elif name in _MODULE_OF:
        value = getattr(importlib.import_module(f"spotkit.{_MODULE_OF[name]}"), name)
    else:
        raise AttributeError(f"module 'spotkit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
