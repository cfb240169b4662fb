"""Options that several commands have, and values given as `name=value`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from spotkit.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Type of the weights: float32, bfloat16, float16, float64 or auto (the checkpoint's). "
        "Default: float32 for embedded, else auto."
    ),
]
DeviceMap = Annotated[
    str | None, typer.Option(help="Where the weights go: cpu, cuda, cuda:1, auto (spread by accelerate) ...")
]
Layout = Annotated[
    str, typer.Option(help="How the states of a pass are laid out: tree (one sequence) or batch (rows).")
]
Cache = Annotated[
    str | None,
    typer.Option(help="none, exact, prefix, dual or block, as far as the model has it. Default: the exact way."),
]
MaskId = Annotated[int | None, typer.Option(help="Id of the mask token, if the checkpoint does not say.")]
AttnImplementation = Annotated[str, typer.Option(help="Attention of the model: sdpa or eager.")]

_WORDS = {"true": True, "false": False, "none": None}


def parse_pairs(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    """The values given as `name=value`: numbers, true, false, none, and everything else as text.

    Raises:
        ConfigError: an entry without `=` or name, or a name given twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise ConfigError(f"{option} {pair!r}: write name=value, as in threshold=0.9")
        if name in values:
            raise ConfigError(f"{option} {pair!r}: {name} is given twice; give it once")
        values[name] = _value(text.strip())
    return values


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (int, float)) else text
