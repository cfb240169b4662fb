from __future__ import annotations

import json
import shutil

import pytest

FAULTS = [
    (lambda c: c.pop("hidden_size"), "config.json lacks hidden_size"),
    (lambda c: c.update(hidden_size=24), "of another shape"),
    (lambda c: c.update(eos_token_id=999), "eos_token_id=999"),
    (lambda c: c.update(use_sliding_window=True), "use_sliding_window=True"),
    (lambda c: c.update(spotkit={"preset": "best"}), "spotkit={'preset': 'best'}"),
]


def test_everything_about_a_checkpoint(spotkit, model):
    result = spotkit("inspect", model)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for text in (
        "sdar", "transformers' Qwen3ForCausalLM", "hidden_size 16", "float32", "bfloat16", "mask 3", "end [2]",
        "at multiples of that from position 0", "exact", "low_confidence_static", "T=0", "with a chat template",
    ):  # fmt: skip
        assert text in result.stdout, text
    assert "missing" not in result.stdout
    assert "0.85" in " ".join(result.stdout.split())


def test_json(spotkit, model):
    found = json.loads(spotkit("inspect", model, "--json", "--block-length", 8).stdout)
    assert (found["adapter"], found["model"], found["faults"]) == ("sdar", "Qwen3ForCausalLM", [])
    assert found["memory"]["bfloat16"] == 2 * found["parameters"]
    assert found["stored"] == {"float32": 4 * found["parameters"]}
    assert (found["spec"]["block_length"], found["spec"]["mask_id"]) == (8, 3)
    assert list(found["presets"]) == ["low_confidence_static", "low_confidence_dynamic", "sequential"]
    assert found["presets"]["low_confidence_static"]["temperature"] == 0


@pytest.fixture
def copy(home, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(home / "model", folder)
    return folder


@pytest.mark.parametrize(("change", "fault"), FAULTS)
def test_what_is_wrong_with_it(spotkit, copy, change, fault):
    content = json.loads((copy / "config.json").read_text())
    change(content)
    (copy / "config.json").write_text(json.dumps(content))
    (copy / "generation_config.json").unlink()
    result = spotkit("inspect", copy)
    assert result.exit_code == 1
    told = json.loads(spotkit("inspect", copy, "--json").stdout)["faults"]
    assert any(fault in text for text in told), told
    assert "missing" in result.stdout


def test_without_weights_or_tokenizer(spotkit, copy):
    (copy / "model.safetensors").unlink()
    (copy / "tokenizer.json").unlink()
    result = spotkit("inspect", copy)
    assert result.exit_code == 1
    assert "weights missing (model.safetensors)" in " ".join(result.stdout.split())
    assert "token ids only" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nowhere",), "nowhere: no such folder"),
        (("embedded", "--cache", "paged"), "cache='paged': choose one of"),
        (("embedded", "--mask-id", "-1"), "mask_id=-1"),
    ],
)
def test_errors_are_one_line_and_status_2(spotkit, arguments, error):
    result = spotkit("inspect", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert error in result.stderr


def test_a_cache_that_the_family_lacks_is_a_fault(spotkit, model):
    result = spotkit("inspect", model, "--cache", "dual")
    assert result.exit_code == 1
    assert "cache='dual': SDAR has exact" in " ".join(result.stdout.split())
