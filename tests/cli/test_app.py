from __future__ import annotations

import builtins
import sys

import pytest

import spotkit as package
from spotkit import cli


def test_help_names_the_commands(spotkit):
    shown = spotkit("--help").stdout
    assert all(name in shown for name in ("demo", "generate", "list", "train-drafter", "conformance"))


def test_version(spotkit):
    assert spotkit("--version").stdout == f"spotkit {package.__version__}\n"


def test_without_typer_the_extra_is_named(monkeypatch):
    original = builtins.__import__

    def no_typer(name, *arguments, **options):
        if name == "typer":
            raise ModuleNotFoundError("No module named 'typer'", name="typer")
        return original(name, *arguments, **options)

    for module in [m for m in sys.modules if m.startswith("spotkit.cli.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", no_typer)
    with pytest.raises(SystemExit, match=r"pip install 'spotkit\[cli\]'"):
        cli.main()
