"""The commands in one program, and how its errors look."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from spotkit.cli import calibrate, conformance, demo, generate, inspect, parts, terminal, train_drafter
from spotkit.errors import SpotkitError


class _Commands(TyperGroup):
    """Prints what spotkit refuses, and files that cannot be used, as one line with exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (SpotkitError, OSError) as error:
            terminal.note(f"error: {' '.join(str(error).split())}")
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Commands,
    help="Exact speculative decoding of diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def spotkit(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Exact speculative decoding of diffusion language models."""
    if version:
        from spotkit import __version__

        typer.echo(f"spotkit {__version__}")
        raise typer.Exit


app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("inspect")(inspect.inspect)
app.command("list")(parts.list_parts)
app.command("train-drafter")(train_drafter.train)
app.command("calibrate")(calibrate.calibrate)
app.command("conformance")(conformance.conformance)
