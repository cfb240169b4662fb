"""Writes problems as JSON lines: the held-out ones that ship, or prompts to train a drafter on.

Problems that the model's training has seen are left out.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Annotated

import attrs
import typer
from corpus import problem, problems


def seen_in_training(seed: int, steps: int, rows: int) -> set[str]:
    """The questions of all training batches (a superset: also those that were too long)."""
    seen = set()
    for pool in range(-(-steps // 8)):
        rng = random.Random(f"{seed}/pool/{pool}")
        seen.update(problem(rng).question for _ in range(rows * 9))
    return seen


def main(
    out: Annotated[Path, typer.Argument(help="File to write.")],
    count: Annotated[int, typer.Option(help="Problems to write.")] = 200,
    seed: Annotated[int, typer.Option(help="Another seed gives other problems.")] = 2026,
    steps: Annotated[int, typer.Option(help="Steps the model was trained for.")] = 3400,
    rows: Annotated[int, typer.Option(help="Texts per step of that training.")] = 16,
    training_seed: Annotated[int, typer.Option(help="Seed of that training.")] = 0,
) -> None:
    """Writes `count` problems that the model was not trained on."""
    seen = seen_in_training(training_seed, steps, rows)
    fresh = (p for p in problems(seed) if p.question not in seen)
    lines = [json.dumps(attrs.asdict(p)) for p in itertools.islice(fresh, count)]
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    typer.run(main)
