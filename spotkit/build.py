"""Parts and strategies by name, every option checked against what the part takes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from spotkit.acceptance import StateEquality
from spotkit.errors import ConfigError, SpotkitError
from spotkit.presets import default_preset
from spotkit.protocols import AcceptanceRule, DecodingRule, Drafter, Target
from spotkit.registry import RULES, STRATEGIES
from spotkit.settings import Strategy

_PLAIN, _TRAINED, _UNTRAINED = "plain", "spot", "confidence_tree"


def strategy(
    name: str | Drafter | None = None,
    /,
    *,
    target: Target | None = None,
    rule: str | DecodingRule | None = None,
    acceptance: AcceptanceRule | None = None,
    budget: int = 8,
    window: int = 1,
    rule_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Strategy:
    """The strategy of that name: its drafter with a decoding rule and an acceptance rule.

    Args:
        name: an installed strategy, or a drafter of your own. None takes "spot" for a target that a drafter ships
            for, and "confidence_tree", which needs none, for all others.
        target: the target it will serve, for drafters that are made for one, and for its rule.
        rule: an installed rule, or one of your own. None takes the rule of the target's own generator, or "static"
            without a target.
        acceptance: by default `StateEquality`, which keeps the plain decoder's text.
        budget: states scored per row and pass; "plain" drafts nothing and always has 1.
        window: blocks per canvas.
        rule_options: options of a rule given by name.
        options: options of the drafter.

    Raises:
        UnknownNameError: no strategy or rule of that name is installed.
        ConfigError: an option that the drafter or rule does not take, or a value it refuses.
    """
    if rule_options is not None and not isinstance(rule_options, Mapping):
        raise ConfigError(f"rule_options={rule_options!r}: give a mapping of option names to values")
    _check_target(target)
    if rule is None:
        rule = "static" if target is None else default_preset(target).rule
    if name is None:
        name = default_name(target)
    return Strategy(
        rule=make_rule(rule, **(rule_options or {})),
        drafter=make_drafter(name, target=target, **options),
        acceptance=StateEquality() if acceptance is None else acceptance,
        budget=1 if name == _PLAIN else budget,
        window=window,
    )


def default_name(target: Target | None) -> str:
    """The strategy for a target if none is named: the trained one where a drafter ships for it."""
    try:
        if target is not None:
            make_drafter(_TRAINED, target=target).init(target.spec, batch_size=1)
            return _TRAINED
    except SpotkitError:
        pass
    return _UNTRAINED


def make_rule(rule: str | DecodingRule, /, **options: Any) -> DecodingRule:
    """The decoding rule of that name with `options`; an instance is returned as it is.

    Raises:
        UnknownNameError: no rule of that name is installed.
        ConfigError: an option that the rule does not take, or a value it refuses.
    """
    if isinstance(rule, str):
        return cast(DecodingRule, _make(RULES.get(rule), f"rule {rule!r}", options))
    _no_options("rule", rule, options)
    return rule


def make_drafter(drafter: str | Drafter, /, *, target: Target | None = None, **options: Any) -> Drafter:
    """The drafter of that strategy with `options`; an instance is returned as it is.

    A factory with a parameter `target` is given the target.

    Raises:
        UnknownNameError: no strategy of that name is installed.
        ConfigError: an option that the drafter does not take, or a value it refuses.
    """
    if not isinstance(drafter, str):
        _no_options("strategy", drafter, options)
        return drafter
    _check_target(target)
    factory = STRATEGIES.get(drafter)
    given = {"target": target} if "target" in _parameters(factory) else {}
    return cast(Drafter, _make(factory, f"strategy {drafter!r}", options, given))


def allowed(factory: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the options that a drafter's or rule's factory takes; `target` is not one."""
    return tuple(name for name in _parameters(factory) if name != "target")


def _check_target(target: Target | None) -> None:
    if target is not None and (isinstance(target, type) or not isinstance(target, Target)):
        raise ConfigError(f"target={target!r}: give the loaded target, as spotkit.load returns it")


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {n: p for n, p in inspect.signature(factory).parameters.items() if p.kind in keyword}


def _make(
    factory: Callable[..., Any], what: str, options: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> Any:
    """Calls `factory`, whose options must be among its named parameters."""
    names = allowed(factory)
    for name, value in options.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            takes = ", ".join(names) or "none"
            raise ConfigError(f"{name}={value!r}: {what} has no such option; it takes {takes}{hint}")
    arguments = {**(given or {}), **options}
    for name, parameter in _parameters(factory).items():
        lacking = name not in arguments or (name == "target" and arguments[name] is None)
        if lacking and parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{name}: {what} needs this option; pass {name}=...")
    return factory(**arguments)


def _no_options(kind: str, part: object, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        raise ConfigError(
            f"{name}={value!r}: {kind}={part!r} is made already; set its options when making it, or give its name"
        )
