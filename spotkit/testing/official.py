"""What official generate functions and their parameters mean in spotkit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from spotkit.errors import CheckpointError, ConfigError, SpotkitError
from spotkit.protocols import DecodingRule
from spotkit.rules import Measure, Ordered, Sequential, Static, Threshold

Case = Mapping[str, Any]


@attrs.frozen
class Reading:
    """How spotkit decodes what an official function decoded.

    Attributes:
        rule: the decoding rule.
        block_length: positions per block.
        whole_blocks: whether the length of prompt and answer together is rounded up to whole blocks.
        new_tokens: length of the answer, if it is not that of the case.
        eos_ids: the end tokens that stop the official loop.
        cache: see `spotkit.load`.
        span: the same.
        finish_block: see `DecodeConfig`.
        trimmed: whether the official function returns the text only, cut after its end token.
        end: length of the expected ids before padding; None if all count.
    """

    rule: DecodingRule
    block_length: int
    whole_blocks: bool = False
    new_tokens: int | None = None
    eos_ids: tuple[int, ...] = ()
    cache: str | None = None
    span: int | None = None
    finish_block: bool = True
    trimmed: bool = False
    end: int | None = None


def read(case: Case) -> Reading:
    """How to decode a case.

    Raises:
        ConfigError: a function, rule or sampling that spotkit does not know from official generators.
        CheckpointError: an entry that its function needs is missing or of the wrong type.
    """
    with entries_of(case):
        return _read(case)


@contextlib.contextmanager
def entries_of(case: Case) -> Iterator[None]:
    """Says which case it is whose entries cannot be used."""
    try:
        yield
    except SpotkitError as error:
        raise type(error)(f"case {case.get('id')}: {error}") from error
    except KeyError as error:
        raise CheckpointError(f"case {case.get('id')}: lacks {error}; complete the case file") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"case {case.get('id')}: an entry of the wrong type ({error}); mend it") from error


def _read(case: Case) -> Reading:
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


def _dream(case: Case) -> Reading:
    measures: dict[str, Measure] = {"maskgit_plus": "probability", "entropy": "entropy", "topk_margin": "margin"}
    rules: dict[str, Callable[[], DecodingRule]] = {
        name: partial(Static, case["steps"], confidence="filtered", measure=measure, schedule="linear")
        for name, measure in measures.items()
    }
    rules["confidence_threshold"] = lambda: Threshold(
        case["threshold"],
        comparator=">=",
        fallback="best",
        steps_per_block=case["steps"],
        confidence="filtered",
        most="schedule",
    )
    return Reading(_rule(case, rules), case["block_length"], cache="none")


def _dream_blocks(cache: str) -> Callable[[Case], Reading]:
    def reading(case: Case) -> Reading:
        def threshold() -> DecodingRule:
            inner = Threshold(case["threshold"], comparator=">=", fallback="best", confidence="filtered")
            return Ordered(inner, lead=True)

        return Reading(_rule(case, {"confidence_threshold": threshold}), case["block_length"], cache=cache)

    return reading


def _fast_dllm_v2(case: Case) -> Reading:
    def threshold() -> DecodingRule:
        inner = Threshold(case["threshold"], comparator=">", fallback="best", confidence="filtered")
        return Ordered(inner, lead=True, span=case["small_block_length"])

    length, prompt, ids = case["block_length"], len(case["prompt_ids"]), case["expected_ids"]
    blocks = prompt // length + case["gen_length"] // length
    stop, end = case["stop_id"], len(ids)
    # It does not see a stop token that the pass over the block before has written, and pads after one it sees.
    stopped = [i for i in range(prompt, end) if ids[i] == stop and set(ids[i + 1 :]) <= {case["pad_id"]}]
    return Reading(
        _rule(case, {"threshold": threshold}),
        length,
        new_tokens=blocks * length + 1 - prompt,  # whole blocks, and the token that the last one's pass writes
        eos_ids=(stop,) if stopped and ids.index(stop, prompt) == stopped[0] else (),
        cache="block" if case.get("use_block_cache") else "exact",
        span=case["small_block_length"] if case.get("use_block_cache") else None,
        trimmed=True,
        end=stopped[0] + 1 if stopped else None,
    )


_FUNCTIONS: dict[str, Callable[[Case], Reading]] = {
    "SDAR/generate.py": _sdar,
    "LLaDA/generate.py:generate": _llada("none"),
    "model.generate": _llada2,
    "diffusion_generate": _dream,
    "Fast-dLLM/dream generation_utils.py:diffusion_generate": _dream,
    "Fast-dLLM/dream generation_utils_block.py:_sample dual_cache=False": _dream_blocks("prefix"),
    "Fast-dLLM/dream generation_utils_block.py:_sample dual_cache=True": _dream_blocks("dual"),
    "batch_sample": _fast_dllm_v2,
    "Fast-dLLM/llada/generate.py:generate": _llada("none"),
    "Fast-dLLM/llada/generate.py:generate_with_prefix_cache": _llada("prefix"),
    "Fast-dLLM/llada/generate.py:generate_with_dual_cache": _llada("dual"),
}
