"""`spotkit calibrate`: Spiffy's draft graph for a target, from a few prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotkit.cli import options, terminal

SAMPLES = 50
"""Prompts that a calibration reads at most (Spiffy's number)."""


def calibrate(
    prompts: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help='One prompt per line; in a .jsonl file, objects with "prompt" or "question". The first 50 are read.',
        ),
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder that spiffy.json is written into.")],
    target: Annotated[str, typer.Option(help="Folder or hub id of the target.")] = "embedded",
    kind: Annotated[str, typer.Option(help="One of the installed calibrators.")] = "spiffy",
    block_length: Annotated[
        list[int] | None,
        typer.Option(help="May be repeated. Default: 4 8 16 32 for embedded, else the target's own."),
    ] = None,
    size: Annotated[int, typer.Option(help="Formulas per graph; a decode uses as many as its budget allows.")] = 63,
    depth: Annotated[int, typer.Option(help="Steps ahead that a formula may reach.")] = 12,
    temperature: Annotated[float, typer.Option(help="Of the trajectories.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(help="Length of a trajectory.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Do not put the prompts through the chat template.")] = False,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    json_: options.Json = False,
) -> None:
    """Calibrate Spiffy on a target's own trajectories, for `spotkit generate --strategy spiffy --drafter OUT`."""
    from spotkit.cli.targets import encode, lengths_for, load_target, own_length
    from spotkit.cli.train_drafter import read_prompts
    from spotkit.logprobs import Sampling
    from spotkit.registry import CALIBRATORS
    from spotkit.rules import Static
    from spotkit.settings import DecodeConfig
    from spotkit.training.collect import Recipe

    calibrator = CALIBRATORS.get(kind)(size=size, depth=depth)
    config = DecodeConfig(max_new_tokens=max_new_tokens, sampling=Sampling(temperature), seed=seed)
    texts = read_prompts(prompts)[:SAMPLES]
    given = lengths_for(target, block_length)
    first = load_target(target, dtype=dtype, device_map=device_map, block_length=given[0] if given else None)
    lengths = given or (own_length(first),)
    ids = [encode(first, text, raw=raw) for text in texts]
    made = {}
    with terminal.progress() as bars:
        task = bars.add_task("calibrating", total=len(lengths))
        for length in lengths:
            same = length == first.spec.block_length
            at = first if same else load_target(target, dtype=dtype, device_map=device_map, block_length=length)
            made[length] = calibrator.calibrate(at, ids, recipe=Recipe(Static(), 1, config))
            bars.advance(task)
    about = {"prompts": len(ids), "temperature": temperature, "depth": depth, "seed": seed}
    calibrator.save(made, out, target=first.spec, about=about)
    sizes = {str(length): len(graph.formulas) for length, graph in made.items()}
    if json_:
        terminal.print_json({"path": str(out), "formulas": sizes, **about})
        return
    told = ", ".join(f"{count} formulas for block length {length}" for length, count in sizes.items())
    typer.echo(f"{told}, from {len(ids)} prompts; saved to {out}.")
