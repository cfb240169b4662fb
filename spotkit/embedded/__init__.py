"""The model that ships with spotkit: a two-million-parameter block-diffusion language model.

It writes worked solutions of arithmetic word problems. `examples/embedded_model/` holds its corpus and the
command that made it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import attrs

_HERE = Path(__file__).parent


@attrs.frozen
class Problem:
    """A held-out problem: the question, a worked solution and its final number."""

    question: str
    solution: str
    answer: int


def path() -> Path:
    """Folder of the model, in SDAR's layout."""
    return _HERE / "model"


def drafter_path() -> Path:
    """Folder of the SPOT drafter trained for the model."""
    return _HERE / "drafter"


def problems() -> tuple[Problem, ...]:
    """The held-out problems, none of which the model was trained on."""
    lines = (_HERE / "problems.jsonl").read_text().splitlines()
    return tuple(Problem(**json.loads(line)) for line in lines)


def answer_of(text: str) -> int | None:
    """The number after the last `Answer:` of a solution, or None if there is none."""
    found = re.findall(r"Answer: (\d+)", text)
    return int(found[-1]) if found else None
