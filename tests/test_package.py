"""The package as its users import it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spotkit


def python(code: str, folder: Path) -> str:
    """What `code` prints in a fresh interpreter that runs in `folder`."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", spotkit.__all__)
def test_every_public_name_resolves(name):
    assert getattr(spotkit, name) is not None


def test_public_names_are_sorted_and_listed():
    assert list(spotkit.__all__) == sorted(spotkit.__all__)
    assert set(spotkit.__all__) <= set(dir(spotkit))


def test_type_checkers_see_the_names_that_the_interpreter_finds():
    tree = ast.parse(Path(spotkit.__file__).read_text())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("spotkit.")]
    seen = {a.name: n.module for n in imports for a in n.names}
    assert seen == {name: f"spotkit.{module}" for name, module in spotkit._MODULE_OF.items()}
    assert {*seen, "__version__"} == set(spotkit.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        spotkit.bogus  # noqa: B018


def test_functions_are_not_shadowed_by_modules(tmp_path):
    code = "import spotkit, spotkit.loop, spotkit.build; print(callable(spotkit.decode), callable(spotkit.strategy))"
    assert python(code, tmp_path) == "True True"


def test_import_is_light(tmp_path):
    code = "import spotkit, sys; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    assert python(code, tmp_path) == "[]"


def test_the_top_level_folders_are_no_import_names(tmp_path):
    code = "import importlib.util as u; print(u.find_spec('adapters'), u.find_spec('strategies'))"
    assert python(code, tmp_path) == "None None"
