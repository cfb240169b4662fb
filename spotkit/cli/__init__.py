"""The command line: `spotkit demo`, `generate`, `list`, `train-drafter`, `conformance`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; its packages come with the extra `cli`."""
    try:
        from spotkit.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"error: the command line needs {error.name}; install it with: pip install 'spotkit[cli]'")
    app(prog_name="spotkit")
