"""Checks that attrs runs on the fields of values, with texts that name the field, the value and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from spotkit.errors import ConfigError


def positive(_: object, field: attrs.Attribute[int], value: int) -> None:
    """Checks for attrs that a field is an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{field.name}={value!r}: give an integer of at least 1")


def seed(_: object, field: attrs.Attribute[int], value: int) -> None:
    """Checks for attrs that a field can seed generators that also count steps."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise ConfigError(f"{field.name}={value!r}: give an integer from 0 to 2**40 - 1")


def one_of(*allowed: str) -> Callable[[object, attrs.Attribute[str], str], None]:
    """A check for attrs that a field is one of the words."""

    def check(_: object, field: attrs.Attribute[str], value: str) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise ConfigError(f"{field.name}={value!r}: choose one of {', '.join(allowed)}")

    return check


def instance(*kinds: type) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    """A check for attrs that a field is of one of the types; a bool is no int."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise ConfigError(f"{field.name}={value!r}: give {names}")

    return check
