from __future__ import annotations

import json

import pytest


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"Tom has {n} eggs.\n" for n in range(60)))
    return file


OPTIONS = ("--block-length", 4, "--block-length", 8, "--max-new-tokens", 12, "--size", 9, "--depth", 3)


def test_calibrates_and_the_graph_serves(spotkit, model, prompts, tmp_path):
    out = tmp_path / "out"
    result = spotkit("calibrate", "--target", model, "--prompts", prompts, "--out", out, *OPTIONS)
    assert result.exit_code == 0, result.output
    assert "9 formulas for block length 4, 9 formulas for block length 8, from 50 prompts" in result.stdout
    content = json.loads((out / "spiffy.json").read_text())
    assert content["about"]["prompts"] == 50
    common = ("generate", "Hi", "--model", model, "--max-new-tokens", 12)
    plain = spotkit(*common, "--strategy", "plain")
    for options in ((), ("--strategy-option", "pruned=3")):
        used = spotkit(*common, "--strategy", "spiffy", "--drafter", out, *options)
        assert used.exit_code == 0, used.output
        assert used.stderr.startswith("spiffy: ")
        assert used.stdout == plain.stdout


def test_json_and_the_same_seed_makes_the_same_graph(spotkit, model, prompts, tmp_path):
    for folder in ("a", "b"):
        common = ("calibrate", "--target", model, "--prompts", prompts, "--out", tmp_path / folder, "--json")
        found = json.loads(spotkit(*common, *OPTIONS, "--temperature", 1).stdout)
        assert found["formulas"] == {"4": 9, "8": 9}
    assert (tmp_path / "a/spiffy.json").read_text() == (tmp_path / "b/spiffy.json").read_text()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--size", "0"), "size=0: give an integer of at least 1"),
        (("--depth", "0"), "depth=0: give an integer of at least 1"),
        (("--kind", "spify"), "Did you mean 'spiffy'?"),
        (("--block-length", "0"), "block_length=0"),
        (("--temperature", "-1"), "temperature=-1.0"),
    ],
)
def test_errors_are_one_line_and_status_2(spotkit, model, prompts, tmp_path, options, error):
    result = spotkit("calibrate", "--target", model, "--prompts", prompts, "--out", tmp_path / "out", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert error in result.stderr
