"""Names of adapters, strategies and rules: installed entry points, and what a program registers itself."""

from __future__ import annotations

import difflib
import importlib.metadata
from importlib.metadata import EntryPoint
from typing import Any, NoReturn

import attrs

from spotkit.errors import ConfigError, UnknownNameError


@attrs.define(eq=False)
class Registry:
    """Finds parts by name; a part is imported when it is first asked for.

    Attributes:
        kind: what the names stand for, as error texts say it ("adapter").
        group: entry-point group in which installed packages announce theirs.
        failures: per broken plug-in the reason why it cannot be used. It never affects the others.
    """

    kind: str
    group: str
    failures: dict[str, str] = attrs.field(factory=dict, init=False)
    _added: dict[str, Any] = attrs.field(factory=dict, init=False)
    _loaded: dict[str, Any] = attrs.field(factory=dict, init=False)
    _points: dict[str, tuple[EntryPoint, ...]] | None = attrs.field(default=None, init=False)

    def names(self) -> tuple[str, ...]:
        """All names, sorted, those of broken plug-ins included."""
        return tuple(sorted({*self._installed(), *self._added}))

    def get(self, name: str) -> Any:
        """The part of that name.

        Raises:
            UnknownNameError: nothing has that name, or the plug-in that has it is broken.
        """
        if name in self._added:
            return self._added[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def register(self, name: str, value: Any, *, override: bool = False) -> None:
        """Adds a part for this process, without an entry point.

        Raises:
            ConfigError: the name is not a plain word, or stands for something else and `override` is false.
        """
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise ConfigError(f"name={name!r}: give a name of letters, digits, _ and -")
        if name in self.names() and not override and not self._holds(name, value):
            raise ConfigError(
                f"name={name!r}: there is a {self.kind} of that name; choose another, or pass override=True"
            )
        self._added[name] = value
        self.failures.pop(name, None)

    def working(self) -> dict[str, Any]:
        """Every part that can be loaded, by name; the others are in `failures` afterwards."""
        parts = {}
        for name in self.names():
            try:
                parts[name] = self.get(name)
            except UnknownNameError:
                continue
        return parts

    def summary(self) -> str:
        """The installed names with the reasons of the broken ones, and how to add one: for error texts."""
        broken = "".join(f"; {name} is broken ({reason})" for name, reason in sorted(self.failures.items()))
        instance = f"spotkit.registry.{self.group.rpartition('.')[2].upper()}"
        return (
            f"Installed: {', '.join(self.names()) or 'none'}{broken}. To add one, install a package with an entry "
            f"point in group {self.group!r}, or use {instance}.register()"
        )

    def _installed(self) -> dict[str, tuple[EntryPoint, ...]]:
        if self._points is None:
            found: dict[str, list[EntryPoint]] = {}
            for point in importlib.metadata.entry_points(group=self.group):
                # One package can be seen through two paths: its equal announcements are one.
                same = found.setdefault(point.name, [])
                if all(point.value != other.value for other in same):
                    same.append(point)
            self._points = {name: tuple(points) for name, points in found.items()}
        return self._points

    def _load(self, name: str) -> Any:
        points = self._installed().get(name)
        if points is None:
            raise UnknownNameError(self._unknown(name))
        if len(points) > 1:
            self._fail(name, f"announced more than once: {', '.join(map(_origin, points))}; uninstall all but one")
        try:
            return points[0].load()
        except Exception as error:
            self._fail(name, f"{_origin(points[0])}: {type(error).__name__}: {error}", cause=error)

    def _fail(self, name: str, reason: str, *, cause: Exception | None = None) -> NoReturn:
        self.failures[name] = reason
        raise UnknownNameError(f"{self.kind} {name!r} cannot be used: {reason}") from cause

    def _unknown(self, name: object) -> str:
        close = difflib.get_close_matches(str(name), self.names(), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"{self.kind}={name!r}: no such {self.kind}.{hint} {self.summary()}"

    def _holds(self, name: str, value: Any) -> bool:
        try:
            return bool(self.get(name) == value)
        except UnknownNameError:
            return False


def _origin(point: EntryPoint) -> str:
    return f"{point.value} of {point.dist.name}" if point.dist is not None else point.value


ADAPTERS = Registry("adapter", "spotkit.adapters")
"""Model families: classes that follow `spotkit.loading.Adapter`."""
STRATEGIES = Registry("strategy", "spotkit.strategies")
"""Drafters: classes or functions that make one."""
RULES = Registry("rule", "spotkit.rules")
"""Decoding rules: classes or functions that make one."""
TRAINERS = Registry("trainer", "spotkit.trainers")
"""How kinds of drafters are trained: classes or functions that make a `spotkit.training.Trainer`."""
CALIBRATORS = Registry("calibrator", "spotkit.calibrators")
"""How drafters without weights are fitted to a target: classes that make a `spotkit.training.Calibrator`."""
