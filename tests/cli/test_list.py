from __future__ import annotations

import json
import os
import subprocess
import sys

BROKEN = {"METADATA": "Metadata-Version: 2.1\nName: stranger\nVersion: 3.2\n",
          "entry_points.txt": "[spotkit.strategies]\nbroken = stranger_of_spotkit:Thing\n"}  # fmt: skip


def test_json_has_every_group(spotkit):
    found = json.loads(spotkit("list", "--json").stdout)
    names = {title: [part["name"] for part in parts] for title, parts in found.items()}
    assert {"plain", "freedave", "confidence_tree", "spot"} <= set(names["strategies"])
    assert {"static", "threshold", "sequential"} <= set(names["rules"])
    assert "sdar" in names["adapters"]
    assert "spot" in names["trainers"]
    rules = {part["name"]: part for part in found["rules"]}
    assert rules["threshold"]["options"]["threshold"] == 0.9
    assert rules["threshold"]["from"].startswith("spotkit ")
    assert rules["threshold"]["error"] is None


def test_the_table_fits_80_columns(spotkit):
    shown = spotkit("list").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "threshold=0.9" in shown
    assert "comparator='>'" in shown


def test_a_broken_plugin_is_shown_with_its_reason_and_harms_nobody(tmp_path):
    info = tmp_path / "stranger-3.2.dist-info"
    info.mkdir()
    for name, text in BROKEN.items():
        (info / name).write_text(text)
    (tmp_path / "stranger_of_spotkit.py").write_text("raise RuntimeError('its GPU library is missing')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*options):
        command = [sys.executable, "-m", "spotkit", "list", *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    parts = {part["name"]: part for part in json.loads(run("--json"))["strategies"]}
    assert parts["broken"]["from"] == "stranger 3.2"
    assert "RuntimeError: its GPU library is missing" in parts["broken"]["error"]
    assert parts["spot"]["error"] is None
    table = " ".join(run().split())
    assert "cannot be used" in table
    assert "its GPU library" in table
