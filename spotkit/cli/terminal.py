"""What the commands share in talking to people and programs. Imports nothing heavy: `--help` is to be quick."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

WIDEST = 100
"""Text that is wider than this is hard to read."""


def console() -> Console:
    """Standard output for people."""
    out = Console(highlight=False, markup=False, emoji=False)
    if out.width > WIDEST:
        out.width = WIDEST
    return out


def progress() -> Progress:
    """A progress bar on standard error, if that is a terminal."""
    err = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    return Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal
    )


def table(*headings: str, left: int = 1) -> Table:
    """An empty table whose first `left` columns hold words and whose others hold numbers."""
    empty = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))
    tall = max(heading.count("\n") for heading in headings)
    for i, heading in enumerate(headings):
        above = "\n" * (tall - heading.count("\n"))
        empty.add_column(above + heading, justify="left" if i < left else "right")
    return empty


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=1))


def note(text: str) -> None:
    """One line on standard error."""
    typer.echo(text, err=True)
