"""Names, plug-ins that break, and options that are not taken."""

from __future__ import annotations

import importlib.metadata
import re
from importlib.metadata import EntryPoint

import attrs
import pytest

from spotkit.acceptance import StateEquality
from spotkit.build import make_drafter, make_rule, strategy
from spotkit.errors import ConfigError, UnknownNameError
from spotkit.registry import ADAPTERS, RULES, STRATEGIES, Registry
from spotkit.rules import Sequential, Static, Threshold
from spotkit.strategies.freedave import FreeDave
from spotkit.strategies.plain import Plain
from spotkit.testing.targets import TableTarget
from spotkit.types import TargetSpec

GROUP = "test.things"


def installed(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> Registry:
    """A registry over the given (name, value) entry points."""
    made = [EntryPoint(name=name, value=value, group=GROUP) for name, value in points]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: made if group == GROUP else [])
    return Registry("thing", GROUP)


def text(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


# Registry


def test_built_in_parts_are_found_by_entry_point() -> None:
    assert "sdar" in ADAPTERS.names()
    assert {"plain", "freedave", "self_speculative", "spiffy", "confidence_tree", "spot"} <= set(STRATEGIES.names())
    assert {"static", "threshold", "sequential"} <= set(RULES.names())
    for registry in (ADAPTERS, STRATEGIES, RULES):
        assert set(registry.working()) == set(registry.names())
        assert registry.failures == {}


def test_parts_are_imported_when_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    things = installed(monkeypatch, ("here", "decimal:Decimal"), ("gone", "no_such_module_at_all:x"))
    assert things.names() == ("gone", "here")
    assert things.failures == {}
    assert things.get("here") is things.get("here")


def test_unknown_name_tells_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    things = installed(monkeypatch, ("hammer", "decimal:Decimal"), ("saw", "decimal:Decimal"))
    with pytest.raises(UnknownNameError) as error:
        things.get("hamer")
    for part in ("thing='hamer'", "Did you mean 'hammer'?", "Installed: hammer, saw", repr(GROUP), "register()"):
        assert part in text(error)
    with pytest.raises(UnknownNameError) as error:
        things.get("zzz")
    assert "Did you mean" not in text(error)
    with pytest.raises(UnknownNameError, match="Installed: none"):
        installed(monkeypatch).get("any")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module_at_all:x", "ModuleNotFoundError"),
        ("decimal:NoSuchName", "AttributeError"),
    ],
)
def test_broken_plug_in_is_told_and_harms_no_other(monkeypatch, value: str, reason: str) -> None:
    things = installed(monkeypatch, ("good", "decimal:Decimal"), ("broken", value))
    assert set(things.working()) == {"good"}
    assert things.failures.keys() == {"broken"}
    assert reason in things.failures["broken"]
    with pytest.raises(UnknownNameError, match=f"thing 'broken' cannot be used: {value}.*{reason}"):
        things.get("broken")
    with pytest.raises(UnknownNameError, match=f"Installed: broken, good; broken is broken .*{reason}"):
        things.get("other")


def test_name_announced_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    things = installed(
        monkeypatch,
        ("twice", "decimal:Decimal"),
        ("twice", "fractions:Fraction"),
        ("same", "decimal:Decimal"),
        ("same", "decimal:Decimal"),
    )
    assert set(things.working()) == {"same"}
    with pytest.raises(UnknownNameError, match="announced more than once: decimal:Decimal, fractions:Fraction"):
        things.get("twice")


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    things = installed(monkeypatch, ("int", "builtins:int"), ("broken", "no_such_module_at_all:x"))
    things.register("float", float)
    things.register("float", float)
    things.register("int", int)
    for name in ("float", "int", "broken"):
        with pytest.raises(ConfigError, match=f"name='{name}': there is a thing of that name"):
            things.register(name, str)
    with pytest.raises(UnknownNameError):
        things.get("broken")
    things.register("broken", str, override=True)
    things.register("int", str, override=True)
    assert things.working() == {"float": float, "int": str, "broken": str}
    assert things.failures == {}
    with pytest.raises(ConfigError, match="name='a b'"):
        things.register("a b", str)


# Build


def test_strategy_by_name() -> None:
    made = strategy("freedave", depth=3, budget=5, window=2, rule="threshold", rule_options={"threshold": 0.5})
    assert (made.rule, made.drafter, made.acceptance) == (Threshold(0.5), FreeDave(3), StateEquality())
    assert (made.budget, made.window) == (5, 2)
    assert strategy("freedave").rule == Static()
    assert strategy("freedave", rule=Sequential(2)).rule == Sequential(2)


def test_plain_has_budget_one() -> None:
    assert strategy("plain", budget=8) == strategy("plain")
    assert strategy("plain").budget == 1


def test_instances_are_taken_as_they_are() -> None:
    assert strategy(FreeDave(2)).drafter == FreeDave(2)
    rule = Static(3)
    assert make_rule(rule) is rule
    with pytest.raises(ConfigError, match=r"depth=2: strategy=FreeDave.* is made already"):
        make_drafter(FreeDave(), depth=2)
    with pytest.raises(ConfigError, match=r"threshold=0\.5: rule=Static.* is made already"):
        make_rule(rule, threshold=0.5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: strategy("freedave", dept=3),
            "dept=3: strategy 'freedave' has no such option; it takes depth; did you",
        ),
        (lambda: strategy("plain", depth=3), "depth=3: strategy 'plain' has no such option; it takes none"),
        (
            lambda: make_rule("static", threshold=0.5),
            "threshold=0.5: rule 'static' has no such option; it takes steps_p",
        ),
        (lambda: strategy("freedave", depth=0), "depth=0: "),
        (lambda: strategy("freedave", budget=0), "budget=0: "),
        (lambda: make_rule("threshold", threshold="high"), "threshold='high': "),
        (lambda: strategy("freedave", rule_options=[1]), "rule_options=[1]: give a mapping"),
        (lambda: strategy("spot", target="embedded"), "target='embedded': give the loaded target"),
        (lambda: strategy("spot", target=TableTarget), "target=<class"),
        (lambda: strategy("spot", drafter=5), "drafter=5: give the folder"),
    ],
)
def test_options_that_are_refused(build, message: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        build()


def test_unknown_strategy_and_rule() -> None:
    with pytest.raises(UnknownNameError, match="strategy='freedaev'.*Did you mean 'freedave'"):
        strategy("freedaev")
    with pytest.raises(UnknownNameError, match="rule='statc'.*Did you mean 'static'"):
        strategy("plain", rule="statc")


@attrs.frozen
class Tied(Plain):
    """A drafter that is made for a target."""

    target: object
    size: int


def test_factories_get_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(monkeypatch)
    registry.register("tied", Tied)
    monkeypatch.setattr("spotkit.build.STRATEGIES", registry)
    table = TableTarget(TargetSpec("t", vocab_size=9, mask_id=8, eos_ids=(), pad_id=0, block_length=3))
    assert make_drafter("tied", target=table, size=2) == Tied(table, 2)
    with pytest.raises(ConfigError, match="^target: strategy 'tied' needs this option"):
        make_drafter("tied", size=2)
    with pytest.raises(ConfigError, match="^size: strategy 'tied' needs this option"):
        make_drafter("tied", target=table)
    with pytest.raises(ConfigError, match="other=1: .*it takes size"):
        make_drafter("tied", target=table, size=2, other=1)
