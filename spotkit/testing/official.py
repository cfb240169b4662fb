"""What official generate functions and their parameters mean in spotkit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from spotkit.errors import ConfigError
from spotkit.protocols import DecodingRule
from spotkit.rules import Sequential, Static, Threshold

Case = Mapping[str, Any]


@attrs.frozen
class Reading:
    """How spotkit decodes what an official function decoded.

    Attributes:
        rule: the decoding rule.
        block_length: positions per block.
        whole_blocks: whether the length of prompt and answer together is rounded up to whole blocks.
        eos_ids: the end tokens that stop the official loop.
        cache: see `spotkit.load`.
        finish_block: see `DecodeConfig`.
        trimmed: whether the official function returns the text only, cut after its end token.
    """

    rule: DecodingRule
    block_length: int
    whole_blocks: bool = False
    eos_ids: tuple[int, ...] = ()
    cache: str | None = None
    finish_block: bool = True
    trimmed: bool = False


def read(case: Case) -> Reading:
    """How to decode a case.

    Raises:
        ConfigError: a function, rule or sampling that spotkit does not know from official generators.
    """
    if case["temperature"] != 0:
        raise ConfigError(f"temperature={case['temperature']} in case {case['id']}: only 0 has a text to compare")
    function = str(case.get("function", "SDAR/generate.py")).removesuffix(" (left-padded batch)")
    if function not in _FUNCTIONS:
        raise ConfigError(f"function={function!r} in case {case['id']}: known are {', '.join(_FUNCTIONS)}")
    return _FUNCTIONS[function](case)


def _rule(case: Case, rules: Mapping[str, Callable[[], DecodingRule]]) -> DecodingRule:
    if case["rule"] not in rules:
        raise ConfigError(f"rule={case['rule']!r} in case {case['id']}: known are {', '.join(rules)}")
    return rules[case["rule"]]()


def _sdar(case: Case) -> Reading:
    steps = case["denoising_steps"]
    rules: dict[str, Callable[[], DecodingRule]] = {
        "low_confidence_static": lambda: Static(steps),
        "low_confidence_dynamic": lambda: Threshold(
            case["threshold"], comparator=">", fallback="quota", steps_per_block=steps
        ),
        "sequential": lambda: Sequential(steps),
    }
    stops = tuple(case["stop_ids"] or ())
    return Reading(_rule(case, rules), case["block_length"], whole_blocks=True, eos_ids=stops)


def _llada(cache: str) -> Callable[[Case], Reading]:
    def reading(case: Case) -> Reading:
        steps = case["steps"] // (case["gen_length"] // case["block_length"])

        def low_confidence() -> DecodingRule:
            if case["threshold"] is None:
                return Static(steps)
            return Threshold(case["threshold"], comparator=">=", fallback="best")

        return Reading(_rule(case, {"low_confidence": low_confidence}), case["block_length"], cache=cache)

    return reading


def _llada2(case: Case) -> Reading:
    steps = min(case["steps"], case["gen_length"])  # the official function takes no more steps than tokens

    def threshold() -> DecodingRule:
        return Threshold(case["threshold"], comparator=">", fallback="quota", steps_per_block=steps)

    stops = (case["eos_id"],)
    return Reading(
        _rule(case, {"threshold": threshold}),
        case["block_length"],
        eos_ids=stops,
        finish_block=not case["eos_early_stop"],
        trimmed=True,
    )


_FUNCTIONS: dict[str, Callable[[Case], Reading]] = {
    "SDAR/generate.py": _sdar,
    "LLaDA/generate.py:generate": _llada("none"),
    "model.generate": _llada2,
    "Fast-dLLM/llada/generate.py:generate": _llada("none"),
    "Fast-dLLM/llada/generate.py:generate_with_prefix_cache": _llada("prefix"),
    "Fast-dLLM/llada/generate.py:generate_with_dual_cache": _llada("dual"),
}
