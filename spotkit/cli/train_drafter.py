"""`spotkit train-drafter`: a drafter for a target, from prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from spotkit.cli import options, terminal
from spotkit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress as Bars
    from rich.progress import TaskID
    from rich.table import Table

    from spotkit.protocols import Target
    from spotkit.training.drafter import Accuracy, Progress

_EMBEDDED_WINDOW, _WINDOW = 3, 2
_TEMPERATURES = [0.0, 1.0]


def train(
    prompts: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help='One prompt per line; in a .jsonl file, objects with "prompt" or "question".',
        ),
    ],
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of the drafter; what it resumes from is in work/.")
    ],
    target: Annotated[str, typer.Option(help="Folder or hub id of the target.")] = "embedded",
    kind: Annotated[str, typer.Option(help="Kind of drafter, one of the installed trainers.")] = "spot",
    block_length: Annotated[
        list[int] | None,
        typer.Option(help="May be repeated. Default: 4 8 16 32 for embedded, else the target's own."),
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(help="Most blocks per canvas, once or for each block length. Default: 3 for embedded, else 2."),
    ] = None,
    temperature: Annotated[list[float], typer.Option(help="May be repeated.")] = _TEMPERATURES,
    max_new_tokens: Annotated[int, typer.Option(help="Length of a trajectory.")] = 256,
    held_out: Annotated[float, typer.Option(help="Share of the prompts kept for the evaluation.")] = 0.1,
    examples: Annotated[
        int, typer.Option(help="At most so many in memory per block length and temperature.")
    ] = 20_000,
    prompts_per_kind: Annotated[
        int | None,
        typer.Option(help="At most so many prompts per block length and temperature, different ones. Default: all."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 4000,
    batch: Annotated[int, typer.Option(help="Examples per step.")] = 96,
    rows: Annotated[int, typer.Option(help="Prompts decoded together.")] = 16,
    seed: Annotated[int, typer.Option(help="Of split, noise, weights and the order of the examples.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Do not put the prompts through the chat template.")] = False,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    json_: options.Json = False,
) -> None:
    """Train a drafter on a target's own trajectories; run it again to go on where it stopped.

    Collects what the plain decoder does on the prompts, fits the drafter, measures on held-out prompts how often
    it knows the next commit, and saves it for `spotkit generate --drafter`.
    """
    from spotkit.cli.targets import encode, lengths_for, load_target, own_length
    from spotkit.registry import TRAINERS
    from spotkit.training.drafter import DrafterConfig, train_drafter
    from spotkit.training.fit import FitConfig

    trainer = TRAINERS.get(kind)(seed=seed)
    texts = read_prompts(prompts)
    lengths = lengths_for(target, block_length)

    def at(length: int | None) -> Target:
        return load_target(target, dtype=dtype, device_map=device_map, block_length=length)

    config = DrafterConfig(
        block_lengths=lengths or (1,),
        windows=tuple(window or [_EMBEDDED_WINDOW if target == "embedded" else _WINDOW]),
        temperatures=tuple(temperature),
        max_new_tokens=max_new_tokens,
        held_out=held_out,
        examples=examples,
        prompts_per_kind=prompts_per_kind,
        rows=rows,
        seed=seed,
        fit=FitConfig(steps=steps, batch=batch, seed=seed),
    )
    first = at(lengths[0] if lengths else None)  # after the options were checked, as it may take minutes
    config = attrs.evolve(config, block_lengths=lengths or (own_length(first),))
    try:
        with terminal.progress() as bars:
            trained = train_drafter(
                out,
                lambda length: first if length == first.spec.block_length else at(length),
                [encode(first, text, raw=raw) for text in texts],
                trainer=trainer,
                config=config,
                on_progress=_Watcher(bars),
            )
    except KeyboardInterrupt:
        terminal.note(f"stopped; the same command goes on from {out / 'work'}")
        raise typer.Exit(130) from None
    if json_:
        terminal.print_json({"path": str(out), **trained.about})
        return
    page = terminal.console()
    page.print(accuracy_table(trained.accuracies))
    page.print(
        f"\nHow often the drafter / the order by stale confidence is right, on {trained.held_out} held-out prompts. "
        f"Trained on {trained.examples} examples from {trained.prompts} prompts; saved to {out}."
    )


def read_prompts(path: Path) -> list[str]:
    """The prompts in a file, empty lines left out.

    Raises:
        ConfigError: a line of a .jsonl file that holds no prompt, a file that is not UTF-8 or holds nothing.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompts={str(path)!r}: not UTF-8 text ({error}); convert it") from error
    if not lines:
        raise ConfigError(f"prompts={str(path)!r}: holds no prompt; write one per line")
    if path.suffix != ".jsonl":
        return lines
    return [_prompt_of(line, f"{path}, prompt {number}") for number, line in enumerate(lines, start=1)]


def _prompt_of(line: str, where: str) -> str:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"prompts: {where}: not JSON ({error}); a .jsonl file has one object per line") from error
    text = fields.get("prompt", fields.get("question")) if isinstance(fields, dict) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(f'prompts: {where}: no text under "prompt" or "question"; add it')
    return text


def accuracy_table(accuracies: Sequence[Accuracy]) -> Table:
    """Held-out accuracies, one row per kind of trajectories, one column per measure."""
    names = list(accuracies[0].values)
    scorers = list(dict.fromkeys(name.partition("/")[0] for name in names))
    measures = list(dict.fromkeys(name.partition("/")[2] for name in names))
    table = terminal.table("block\nlength", "window", "T", "examples", *measures, left=0)
    for row in accuracies:
        kind = row.kind
        named = ([f"{scorer}/{measure}" for scorer in scorers] for measure in measures)
        cells = (" / ".join(f"{row.values[n]:.3f}" for n in group if n in row.values) for group in named)
        table.add_row(str(kind.block_length), str(kind.window), f"{kind.temperature:g}", str(row.examples), *cells)
    return table


class _Watcher:
    """Shows how far the training is in two bars."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        if progress.stage not in self.tasks:
            self.tasks[progress.stage] = self.bars.add_task("", total=progress.total)
        text = f"trajectories {progress.label}" if progress.loss is None else f"fit, loss {progress.loss:.3f}"
        self.bars.update(self.tasks[progress.stage], completed=progress.done, description=text)
