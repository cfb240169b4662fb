from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from spotkit.strategies import spot_trainer
from spotkit.strategies.order_model import OrderConfig
from spotkit.training import drafter as drafter_module

DATA = Path(__file__).parent.parent / "data" / "conformance"
OPTIONS = (
    "--block-length", 4, "--window", 2, "--max-new-tokens", 10, "--examples", 50, "--steps", 4, "--batch", 8,
    "--rows", 4, "--held-out", 0.25,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    def small(*fields, **more):
        return OrderConfig(*fields, **more, width=16, layers=1, heads=2)

    monkeypatch.setattr(spot_trainer, "OrderConfig", small)


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"question": f"Tom has {n} eggs."}) + "\n" for n in range(9)))
    return file


def test_trains_and_the_drafter_serves(spotkit, model, prompts, tmp_path):
    out = tmp_path / "out"
    result = spotkit("train-drafter", "--target", model, "--prompts", prompts, "--out", out, *OPTIONS)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "next" in result.stdout
    assert json.loads((out / "drafter.json").read_text())["about"]["held_out_prompts"] == 2
    used = spotkit("generate", "Hi", "--model", model, "--drafter", out, "--max-new-tokens", 8)
    assert used.exit_code == 0, used.output
    assert used.stderr.startswith("spot: ")


@pytest.fixture
def dream(model, tmp_path):
    """A tiny Dream checkpoint with the tokenizer of the tiny model."""
    folder = tmp_path / "dream"
    shutil.copytree(DATA / "checkpoints/dream", folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(f"{model}/{name}", folder)
    return folder


def test_a_target_whose_answer_is_one_block(spotkit, dream, prompts, tmp_path):
    common = ("train-drafter", "--target", dream, "--prompts", prompts, "--out", tmp_path / "out")
    refused = spotkit(*common)
    assert refused.exit_code == 2
    assert "--block-length: an answer of dream is one block" in refused.stderr
    result = spotkit(*common, *OPTIONS)
    assert result.exit_code == 0, result.output
    told = ("generate", "Hi", "--model", dream, "--block-length", 4, "--max-new-tokens", 8, "--rule", "static")
    texts = [spotkit(*told, "--strategy", "plain"), spotkit(*told, "--drafter", tmp_path / "out")]
    assert [text.exit_code for text in texts] == [0, 0], texts[1].output
    assert texts[0].stdout == texts[1].stdout
    assert texts[1].stderr.startswith("spot: ")


def test_run_again_it_goes_on_and_ends_the_same(spotkit, model, prompts, tmp_path, monkeypatch):
    def run(folder):
        return spotkit(
            "train-drafter", "--target", model, "--prompts", prompts, "--out", tmp_path / folder, "--json", *OPTIONS
        )

    original, kept = drafter_module.collect, []

    def stop_after_two(*arguments, **options):
        for shard in original(*arguments, **options):
            yield shard
            kept.append(shard)
            if len(kept) == 2:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(drafter_module, "collect", stop_after_two)
        stopped = run("stopped")
    assert stopped.exit_code == 130
    assert stopped.stderr == f"stopped; the same command goes on from {tmp_path / 'stopped' / 'work'}\n"
    times = {shard: shard.stat().st_mtime_ns for shard in kept}
    resumed, whole = run("stopped"), run("whole")
    assert {shard: shard.stat().st_mtime_ns for shard in kept} == times
    assert json.loads(resumed.stdout)["accuracies"] == json.loads(whole.stdout)["accuracies"]
    mine, other = (load_file(tmp_path / run / "drafter.safetensors") for run in ("stopped", "whole"))
    assert all(torch.equal(mine[name], other[name]) for name in other)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("p.txt", "\n\n", "holds no prompt"),
        ("p.jsonl", "{}", 'no text under "prompt" or "question"'),
        ("p.jsonl", "Tom", "not JSON"),
        ("p.txt", "Tom has 3 eggs.", "1 different; give at least 2"),
    ],
)
def test_bad_prompt_files_are_refused(spotkit, model, tmp_path, name, text, error):
    (tmp_path / name).write_text(text)
    result = spotkit("train-drafter", "--target", model, "--prompts", tmp_path / name, "--out", tmp_path / "o")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: prompts")
    assert error in result.stderr


def test_a_folder_that_cannot_be_written_is_one_line(spotkit, model, prompts, tmp_path):
    (tmp_path / "file").write_text("")
    result = spotkit(
        "train-drafter", "--target", model, "--prompts", prompts, "--out", tmp_path / "file" / "o", *OPTIONS
    )
    assert result.exit_code == 2
    assert result.stderr.startswith("error: [Errno ")
    assert result.stderr.count("\n") == 1


def test_an_unknown_kind_names_the_installed_ones(spotkit, prompts, tmp_path):
    result = spotkit("train-drafter", "--prompts", prompts, "--out", tmp_path / "o", "--kind", "spto")
    assert result.exit_code == 2
    assert "Did you mean 'spot'?" in result.stderr


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("held_out", ["--held-out", 1.5]),
        ("windows", ["--window", 0]),
        ("windows", ["--block-length", 4, "--window", 1, "--window", 2]),
        ("rows", ["--rows", 0]),
        ("temperature", ["--temperature", -1]),
        ("steps", ["--steps", 0]),
        ("batch", ["--batch", 0]),
    ],
)
def test_wrong_options_are_found_before_the_target_is_loaded(spotkit, prompts, tmp_path, monkeypatch, field, wrong):
    monkeypatch.setattr("spotkit.cli.targets.load_target", lambda *a, **k: pytest.fail("the target was loaded"))
    result = spotkit("train-drafter", "--prompts", prompts, "--out", tmp_path / "out", *wrong)
    assert result.exit_code == 2, result.output
    assert f"{field}=" in result.output
