"""Checks a target against what its family's official generator wrote, case by case.

A case file holds prompts, parameters and the ids that the official code returned for a small checkpoint; the
checkpoint lies relative to the folder above the case file's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from spotkit.build import strategy
from spotkit.capabilities import device_of
from spotkit.errors import CheckpointError, ConfigError
from spotkit.loading import load
from spotkit.logprobs import Sampling
from spotkit.loop import decode
from spotkit.protocols import DecodingRule, Target
from spotkit.results import RowResult
from spotkit.rules import Sequential, Static, Threshold
from spotkit.settings import DecodeConfig
from spotkit.types import TargetSpec

Case = Mapping[str, Any]
_RULES: dict[str, Callable[[Case], DecodingRule]] = {
    "low_confidence_static": lambda case: Static(case["denoising_steps"]),
    "low_confidence_dynamic": lambda case: Threshold(
        case["threshold"], comparator=">", fallback="quota", steps_per_block=case["denoising_steps"]
    ),
    "sequential": lambda case: Sequential(case["denoising_steps"]),
}


@attrs.frozen
class Failure:
    """A case that did not pass, and the first difference."""

    case: str
    difference: str


@attrs.frozen
class Report:
    """What came of one case file."""

    family: str
    passed: int
    failed: tuple[Failure, ...]

    @property
    def ok(self) -> bool:
        """Whether there were cases and all passed."""
        return self.passed > 0 and not self.failed


@attrs.frozen
class Respecified:
    """A target under another spec: other end tokens, say."""

    target: Target
    spec: TargetSpec

    @property
    def device(self) -> torch.device:
        """Where the target wants its canvases."""
        return device_of(self.target)

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> Any:
        """The target's context."""
        return self.target.open(prompts, max_new_tokens=max_new_tokens)

    def score(self, canvases: Tensor, *, context: Any) -> tuple[Tensor, Any]:
        """The target's logits."""
        return self.target.score(canvases, context=context)

    def extend(self, context: Any, *, block: Tensor, rows: Tensor) -> Any:
        """The target's context, extended."""
        return self.target.extend(context, block=block, rows=rows)


def run_file(
    path: str | Path, *, attn_implementation: str = "sdpa", layout: Literal["tree", "batch"] = "tree"
) -> Report:
    """Decodes every case of a file without drafts, in float32, and compares ids and passes.

    Raises:
        CheckpointError: the case file or its checkpoint cannot be read.
        UnknownNameError: no installed adapter knows the checkpoint.
        ConfigError: a case with a rule or sampling that spotkit does not know from official generators.
    """
    path = Path(path)
    content = _read(path)
    targets: dict[int | None, Target] = {}
    failed = []
    for case in content["cases"]:
        length = case.get("block_length")
        if length not in targets:
            targets[length] = load(
                path.resolve().parent.parent / content["checkpoint"],
                dtype="float32",
                block_length=length,
                attn_implementation=attn_implementation,
                layout=layout,
            )
        difference = _difference(targets[length], case)
        if difference is not None:
            failed.append(Failure(case["id"], difference))
    return Report(content["family"], len(content["cases"]) - len(failed), tuple(failed))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as a case file ({error})") from error
    if not isinstance(content, dict) or not {"family", "checkpoint", "cases"} <= content.keys():
        raise CheckpointError(f"{path}: not a case file; it must have family, checkpoint and cases")
    return content


def _difference(target: Target, case: Case) -> str | None:
    """The first way in which decoding `case` differs from what was expected."""
    spec = attrs.evolve(target.spec, eos_ids=tuple(case["stop_ids"] or ()))
    prompt, length = case["prompt_ids"], spec.block_length
    end = -(-(len(prompt) + case["gen_length"]) // length) * length  # the official loop fills whole blocks
    result = decode(
        Respecified(target, spec),
        [prompt],
        strategy=strategy("plain", rule=_rule(case)),
        config=DecodeConfig(max_new_tokens=end - len(prompt), sampling=_sampling(case), finish_block=True),
    ).rows[0]
    expected = case["expected_ids"] if case["output_includes_prompt"] else prompt + case["expected_ids"]
    calls = case.get("forward_calls")
    return _compare(_canvas(result, prompt, end, spec.mask_id), expected, spec.mask_id, case) or (
        f"{result.stats.passes} passes, the official loop {calls}"
        if calls is not None and result.stats.passes > calls
        else None
    )


def _rule(case: Case) -> DecodingRule:
    if case["rule"] not in _RULES:
        raise ConfigError(f"rule={case['rule']!r} in case {case['id']}: known are {', '.join(_RULES)}")
    return _RULES[case["rule"]](case)


def _sampling(case: Case) -> Sampling:
    if case["temperature"] != 0:
        raise ConfigError(f"temperature={case['temperature']} in case {case['id']}: only 0 has a text to compare")
    return Sampling()


def _canvas(result: RowResult, prompt: Sequence[int], end: int, mask_id: int) -> list[int]:
    """The whole canvas after the decode, as the official loop returns it."""
    canvas = [*prompt, *[mask_id] * (end - len(prompt))]
    for step in result.log:
        for position, token in zip(step.positions, step.tokens, strict=True):
            canvas[position] = token
    return canvas


def _compare(canvas: Sequence[int], expected: Sequence[int], mask_id: int, case: Case) -> str | None:
    if len(canvas) != len(expected):
        return f"{len(canvas)} ids, expected {len(expected)}"
    for position, (got, wanted) in enumerate(zip(canvas, expected, strict=True)):
        if got != wanted:
            return f"position {position}: {got}, expected {wanted}"
    if mask_id in canvas and not case["has_mask_left"]:
        return f"position {list(canvas).index(mask_id)}: left open"
    return None
