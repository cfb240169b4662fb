"""`spotkit list`: what is installed, and what of it is broken."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from spotkit.cli import options, terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spotkit.registry import Registry


def list_parts(json_: options.Json = False) -> None:
    """Show the installed adapters, strategies, rules and trainers, their options, and what failed to load."""
    from spotkit.registry import ADAPTERS, CALIBRATORS, RULES, STRATEGIES, TRAINERS

    groups = {
        "adapters": ADAPTERS,
        "strategies": STRATEGIES,
        "rules": RULES,
        "trainers": TRAINERS,
        "calibrators": CALIBRATORS,
    }
    found = {title: describe(registry) for title, registry in groups.items()}
    if json_:
        terminal.print_json(found)
        return
    page = terminal.console()
    for title, parts in found.items():
        table = terminal.table(title, "options", "from", left=3)
        for part in parts:
            if part["error"] is None:
                table.add_row(part["name"], _options(part["options"]), part["from"])
            else:
                table.add_row(part["name"], f"cannot be used: {part['error']}", part["from"])
        page.print(table)
        page.print()


def describe(registry: Registry) -> list[dict[str, Any]]:
    """Name, source, options with defaults and what is wrong, of every part in a registry."""
    origins: dict[str, str] = {}
    for point in entry_points(group=registry.group):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        known = origins.setdefault(point.name, origin)
        if origin not in known.split(", "):
            origins[point.name] = f"{known}, {origin}"
    working = registry.working()
    return [
        {
            "name": name,
            "from": origins.get(name, "this program"),
            "options": _defaults(working[name]) if name in working else {},
            "error": registry.failures.get(name),
        }
        for name in registry.names()
    ]


def _defaults(factory: Any) -> dict[str, Any]:
    """The options of a part with their defaults, as far as JSON has them; None where one must be given.

    Adapters have none: what they take is asked for by `spotkit.load`, the same for all.
    """
    from spotkit.build import allowed

    if hasattr(factory, "matches"):
        return {}
    parameters = inspect.signature(factory).parameters
    defaults = {name: parameters[name].default for name in allowed(factory)}
    plain = (bool, int, float, str, type(None))
    return {
        name: None if value is inspect.Parameter.empty else value if isinstance(value, plain) else str(value)
        for name, value in defaults.items()
    }


def _options(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}={value!r}" for name, value in values.items()) or "-"
