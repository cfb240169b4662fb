"""`spotkit conformance`: an adapter against what its family's official generator wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from spotkit.cli import options


def conformance(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Case files.")],
    attn_implementation: options.AttnImplementation = "sdpa",
    layout: options.Layout = "tree",
) -> None:
    """Check adapters against case files: the official ids, exactly. Exit status 1 if a case fails."""
    from transformers.utils import logging

    from spotkit.testing.conformance import run_file

    logging.disable_progress_bar()
    passed = failed = 0
    for file in files:
        report = run_file(
            file, attn_implementation=attn_implementation, layout=cast(Literal["tree", "batch"], layout)
        )
        passed += report.passed
        failed += len(report.failed)
        line = f"{report.family}: {report.passed} passed, {len(report.failed)} failed"
        if report.failed:
            line += f"; first: {report.failed[0].case}: {report.failed[0].difference}"
        typer.echo(line)
    typer.echo(f"{passed} passed, {failed} failed")
    if failed or not passed:
        raise typer.Exit(1)
