"""Checks that a wheel holds every module of its source, the embedded model, and nothing else.

Usage: check_wheel.py WHEEL SOURCE
"""

import sys
import zipfile
from pathlib import Path

DATA = (
    "py.typed",
    "embedded/problems.jsonl",
    "embedded/model/config.json",
    "embedded/model/generation_config.json",
    "embedded/model/model.safetensors",
    "embedded/model/tokenizer.json",
    "embedded/model/tokenizer_config.json",
    "embedded/model/chat_template.jinja",
    "embedded/drafter/",
)
FOLDERS = {"spotkit": "spotkit", "adapters": "spotkit/adapters", "strategies": "spotkit/strategies"}


def main(wheel: str, source: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        size = sum(item.compress_size for item in archive.infolist())

    wanted = {f"spotkit/{file}" for file in DATA}
    for folder, package in FOLDERS.items():
        root = Path(source, folder)
        wanted |= {f"{package}/{file.relative_to(root).as_posix()}" for file in root.rglob("*.py")}

    lacking = sorted(file for file in wanted if not any(name.startswith(file) for name in names))
    strays = sorted(n for n in names if not n.startswith(("spotkit/", "spotkit-")) or "training.safetensors" in n)
    if lacking or strays:
        sys.exit(f"the wheel lacks {lacking} and has strays {strays}: see [tool.setuptools] in pyproject.toml")
    print(f"{Path(wheel).name}: {len(names)} files, {size / 2**20:.1f} MiB")


main(*sys.argv[1:])
