"""Checks a target against what its family's official generator wrote, case by case.

A case file holds prompts, parameters and the ids that the official code returned for a small checkpoint; the
checkpoint lies relative to the folder above the case file's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from spotkit.build import strategy
from spotkit.capabilities import admitted_by, device_of
from spotkit.errors import CheckpointError
from spotkit.loading import find, load, read_json
from spotkit.loop import decode
from spotkit.protocols import Target
from spotkit.results import RowResult
from spotkit.settings import DecodeConfig
from spotkit.testing.official import Case, Reading, entries_of, read
from spotkit.types import TargetSpec


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

    def admits(self, canvases: Tensor, *, context: Any) -> Tensor:
        """What the target admits."""
        return admitted_by(self.target, canvases, context=context)

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
    checkpoint = path.resolve().parent.parent / content["checkpoint"]
    find(checkpoint)
    targets: dict[tuple[int, str | None, int | None], Target] = {}
    failed = []
    for case in content["cases"]:
        reading = read(case)
        key = (reading.block_length, reading.cache, reading.span)
        if key not in targets:
            targets[key] = load(
                checkpoint,
                dtype="float32",
                block_length=reading.block_length,
                attn_implementation=attn_implementation,
                layout=layout,
                cache=reading.cache,
                span=reading.span,
                mask_id=content.get("mask_id"),
            )
        difference = _difference(targets[key], case, reading)
        if difference is not None:
            failed.append(Failure(case["id"], difference))
    return Report(content["family"], len(content["cases"]) - len(failed), tuple(failed))


def _read(path: Path) -> Mapping[str, Any]:
    content = read_json(path)
    kinds = {"family": str, "checkpoint": str, "cases": list}
    if not all(isinstance(content.get(name), kind) for name, kind in kinds.items()):
        raise CheckpointError(f"{path}: not a case file; it must have family, checkpoint and a list of cases")
    if not all(isinstance(case, dict) and isinstance(case.get("id"), str) for case in content["cases"]):
        raise CheckpointError(f"{path}: every case must be an object with an id; complete the case file")
    return content


def _difference(target: Target, case: Case, reading: Reading) -> str | None:
    """The first way in which decoding `case` differs from what was expected."""
    with entries_of(case):
        prompts, expected = _rows(case)
        ends = [_end(len(prompt), case, reading) for prompt in prompts]
        calls = int(case.get("forward_calls", 2**63))  # some official code was not counted
    spec = attrs.evolve(target.spec, eos_ids=reading.eos_ids)
    result = decode(
        Respecified(target, spec),
        prompts,
        strategy=strategy("plain", rule=reading.rule),
        config=DecodeConfig(max_new_tokens=ends[0] - len(prompts[0]), finish_block=reading.finish_block),
    )
    for row, prompt, end, ids in zip(result.rows, prompts, ends, expected, strict=True):
        got = [*prompt, *row.tokens] if reading.trimmed else _canvas(row, prompt, end, spec.mask_id)
        difference = _compare(got[: reading.end], ids[: reading.end], spec.mask_id, case)
        if difference is not None:
            return difference
    passes = result.stats.passes
    return f"{passes} passes, the official loop {calls}" if passes > calls else None


def _rows(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and expected ids of a case, without padding; most cases have one of each."""
    if "attention_mask" not in case:
        prompt, expected = case["prompt_ids"], case["expected_ids"]
        return [prompt], [[*expected] if case["output_includes_prompt"] else prompt + expected]
    padding = [mask.count(0) for mask in case["attention_mask"]]
    prompts, expected = (
        [ids[skip:] for ids, skip in zip(case[name], padding, strict=True)] for name in ("prompt_ids", "expected_ids")
    )
    return prompts, expected


def _end(prompt: int, case: Case, reading: Reading) -> int:
    """Length of prompt and answer."""
    end = prompt + (case["gen_length"] if reading.new_tokens is None else reading.new_tokens)
    return -(-end // reading.block_length) * reading.block_length if reading.whole_blocks else end


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
