"""Trajectories: what a drafter would have read at each pass of the plain decoder, and what came next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spotkit.acceptance import StateEquality
from spotkit.crop import crop
from spotkit.errors import CheckpointError
from spotkit.loop import decode
from spotkit.protocols import DecodingRule, Target
from spotkit.sampler import Sampler
from spotkit.settings import DecodeConfig, Strategy
from spotkit.training import Reader, Trainer
from spotkit.types import Evidence, State, Step, TargetSpec

NEVER = 30_000
"""Commit time of positions that no recorded step committed."""

Sink = Callable[[State, Evidence, DecodingRule, Sampler], None]


@attrs.frozen
class Recorder:
    """A drafter that proposes nothing and hands what it is shown to `sink`."""

    sink: Sink

    def init(self, spec: TargetSpec, *, batch_size: int) -> None:
        return None

    def propose(
        self, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler, budget: int, carry: None
    ) -> tuple[None, None]:
        self.sink(state, evidence, rule, sampler)
        return None, None


@attrs.frozen
class Recipe:
    """How trajectories of one kind are collected.

    Attributes:
        rule: the rule whose order is learned.
        window: blocks per canvas.
        config: sampling and length.
        rows: prompts decoded together.
    """

    rule: DecodingRule
    window: int
    config: DecodeConfig
    rows: int = 16


def trajectories(
    target: Target, prompts: Sequence[Sequence[int]], *, reader: Reader, recipe: Recipe, first_row: int = 0
) -> dict[str, Tensor]:
    """Examples of all passes of the plain decoder on `prompts`: the reader's inputs, and the labels.

    Labels: `time` (steps from the current state until the position commits, `NEVER` if it does not) `[E, N]` and
    `final` (the token it commits) `[E, N]`.
    """
    seen: list[tuple[State, dict[str, Tensor]]] = []

    def sink(state: State, evidence: Evidence, rule: DecodingRule, sampler: Sampler) -> None:
        piece = crop(state, evidence, blocks=recipe.window, spec=target.spec)
        state, evidence = piece.state, piece.evidence
        seen.append((state, reader.inputs(state, evidence=evidence, rule=rule, sampler=sampler)))

    strategy = Strategy(recipe.rule, Recorder(sink), StateEquality(), budget=2, window=recipe.window)
    ids = range(first_row, first_row + len(prompts))
    result = decode(target, prompts, strategy=strategy, config=recipe.config, row_ids=ids)
    parts: dict[str, list[Tensor]] = {}
    for index, (state, inputs) in enumerate(seen, start=1):
        for row, answer in enumerate(result.rows):
            if index >= len(answer.log):
                continue
            labels = _labels(answer.log[index:], int(state.start[row]), state.canvas.shape[-1])
            for name, value in {**{k: v[row] for k, v in inputs.items()}, **labels}.items():
                parts.setdefault(name, []).append(value)
    return {name: torch.stack(values).contiguous() for name, values in parts.items()}


def _labels(log: Sequence[Step], start: int, width: int) -> dict[str, Tensor]:
    time = torch.full((width,), NEVER, dtype=torch.int16)
    final = torch.zeros(width, dtype=torch.int32)
    for k, step in enumerate(log):
        for position, token in zip(step.positions, step.tokens, strict=True):
            if start <= position < start + width:
                time[position - start] = k
                final[position - start] = token
    return {"time": time, "final": final}


def read_shard(path: Path) -> dict[str, Tensor]:
    """The examples in a file that `collect` wrote.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); delete it, and it is collected again") from error


def collect(
    folder: Path, target: Target, prompts: Sequence[Sequence[int]], *, trainer: Trainer, recipe: Recipe
) -> Iterator[Path]:
    """Writes the trajectories of `prompts` to `folder`, one shard per batch, and yields each shard's path.

    Shards that exist are not made again, so an interrupted collection goes on where it stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for begin in range(0, len(prompts), recipe.rows):
        shard = folder / f"{begin // recipe.rows:05d}.safetensors"
        if not shard.exists():
            batch = prompts[begin : begin + recipe.rows]
            examples = trajectories(target, batch, reader=trainer, recipe=recipe, first_row=begin)
            temporary = shard.with_suffix(".tmp")
            save_file(examples, temporary)
            temporary.replace(shard)
        yield shard
