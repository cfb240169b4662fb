"""How a target's own generator decodes: its rules, its sampling and its length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import attrs

from spotkit.errors import PartError
from spotkit.fields import instance
from spotkit.protocols import DecodingRule, Target
from spotkit.rules import Static
from spotkit.settings import DecodeConfig


@attrs.frozen
class Preset:
    """One way in which a family's official generator decodes.

    Attributes:
        rule: its decoding rule, with its defaults.
        config: its sampling and length.
        source: where that stands.
    """

    rule: DecodingRule = attrs.field()
    config: DecodeConfig = attrs.field(factory=DecodeConfig, validator=instance(DecodeConfig))
    source: str = attrs.field(default="", validator=instance(str))

    @rule.validator
    def _check_rule(self, _: object, value: object) -> None:
        if isinstance(value, type) or not isinstance(value, DecodingRule):
            raise PartError(f"rule={value!r}: a preset needs an instance that follows the DecodingRule protocol")


@runtime_checkable
class Preconfigured(Protocol):
    """A target that knows how its family decodes."""

    @property
    def presets(self) -> Mapping[str, Preset]:
        """The official ways by their official names, the default first; possibly none."""
        ...


GENERAL = {"static": Preset(Static(), source="spotkit")}
"""What a target that has no presets is decoded with."""


def presets_of(target: Target) -> Mapping[str, Preset]:
    """The ways in which the target's official generator decodes, the default first.

    Raises:
        PartError: the target's `presets` are something else.
    """
    known = target.presets if isinstance(target, Preconfigured) else {}
    if not isinstance(known, Mapping) or not all(
        isinstance(k, str) and isinstance(v, Preset) for k, v in known.items()
    ):
        raise PartError(f"presets={known!r}: must be a mapping of names to Preset values")
    return known or GENERAL


def default_preset(target: Target) -> Preset:
    """How the target is decoded if nothing else is said."""
    return next(iter(presets_of(target).values()))
