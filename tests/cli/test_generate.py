from __future__ import annotations

import json
import subprocess
import sys

import pytest

SHORT = ("--max-new-tokens", 10)


def test_text_to_stdout_and_a_summary_to_stderr(spotkit, model):
    result = spotkit("generate", "Hi there", "--model", model, *SHORT)
    assert result.exit_code == 0, result.output
    assert len(result.stdout.strip("\n")) <= 10
    assert result.stderr.startswith("confidence_tree: ")
    assert "steps per pass" in result.stderr
    assert "EXACT_PATH" in result.stderr
    assert result.stderr.count("\n") == 1


def test_json(spotkit, model):
    result = spotkit("generate", "Hi", "--model", model, "--json", "--temperature", 1, "--seed", 5, *SHORT)
    found = json.loads(result.stdout)
    assert set(found) == {"text", "strategy", "tokens", "finish_reason", "guarantee", "cache", "seed", "stats"}
    assert (found["seed"], found["guarantee"], len(found["tokens"])) == (5, "EXACT_PATH", 10)
    assert found["stats"]["passes"] * found["stats"]["steps_per_pass"] == pytest.approx(found["stats"]["steps"])
    assert result.stderr == ""


@pytest.mark.parametrize("sampling", [(), ("--temperature", 0.8, "--top-k", 20, "--top-p", 0.9, "--seed", 3)])
def test_every_strategy_writes_the_same_text(spotkit, tiny, sampling):
    texts = set()
    for strategy in ("plain", "freedave", "confidence_tree", "spot"):
        result = spotkit("generate", "Hi", "--strategy", strategy, "--window", 2, *sampling, *SHORT)
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith(f"{strategy}: ")
        texts.add(result.stdout)
    assert len(texts) == 1


def test_the_default_strategy_is_spot_where_there_is_a_drafter(spotkit, tiny, home):
    assert spotkit("generate", "Hi", *SHORT).stderr.startswith("spot: ")
    assert spotkit("generate", "Hi", "--block-length", 5, *SHORT).stderr.startswith("confidence_tree: ")
    named = spotkit("generate", "Hi", "--model", home / "model", "--drafter", home / "drafter", *SHORT)
    assert named.stderr.startswith("spot: ")


def test_rule_and_its_options(spotkit, model):
    result = spotkit(
        "generate", "Hi", "--model", model, "--rule", "threshold", "--rule-option", "threshold=0.01",
        "--rule-option", "fallback=best", "--strategy", "freedave", "--strategy-option", "depth=2", "--json", *SHORT,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["stats"]["steps"] < 10


def test_standard_input_and_raw(spotkit, model):
    told = spotkit("generate", "Hi", "--model", model, *SHORT)
    assert spotkit("generate", "--model", model, *SHORT, input="Hi\n").stdout == told.stdout
    assert spotkit("generate", "Hi", "--model", model, "--raw", *SHORT).stdout != told.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("",), "prompt='': nothing to answer"),
        (("Hi", "--temperature", "-1"), "temperature=-1.0: give a number of at least 0"),
        (("Hi", "--max-new-tokens", "0"), "max_new_tokens=0: give the number of tokens to write"),
        (("Hi", "--budget", "0"), "budget=0: give an integer of at least 1"),
        (("Hi", "--strategy", "sopt"), "Did you mean 'spot'?"),
        (("Hi", "--rule", "stati"), "Did you mean 'static'?"),
        (("Hi", "--rule-option", "steps"), "write name=value"),
        (("Hi", "--rule-option", "steps_per_block=3"), "say which --rule takes it"),
        (("Hi", "--preset", "dynamic"), "preset='dynamic': other has low_confidence_static, low_confidence_dynamic"),
        (("Hi", "--rule", "static", "--rule-option", "stepz=3"), "it takes steps_per_block, confidence"),
        (
            ("Hi", "--rule", "static", "--rule-option", "confidence=raw", "--rule-option", "confidence=raw"),
            "given twice",
        ),
        (("Hi", "--strategy", "spot"), "make one with `spotkit train-drafter`"),
        (("Hi", "--drafter", "nowhere"), "drafter='nowhere'"),
        (("Hi", "--layout", "heap"), "layout='heap': choose one of tree, batch"),
        (("Hi", "--dtype", "int8"), "dtype='int8': choose one of"),
        (("Hi", "--block-length", "0"), "block_length=0"),
        (("Hi", "--cache", "dual"), "cache='dual': SDAR has exact"),
        (("Hi", "--cache", "paged"), "cache='paged': choose one of"),
        (("Hi", "--mask-id", "999"), "mask_token_id=999"),
        (("Hi", "--strategy-option", "budget=4"), "--strategy-option budget: no option of a strategy"),
        (("Hi", "--strategy-option", "target=4"), "--strategy-option target: no option of a strategy"),
        (("Hi", "--strategy", "spot", "--strategy-option", "drafter=5"), "drafter=5: give the folder"),
        (("Hi\udcff",), "not UTF-8 text"),
        (("Hi", "--device-map", "meta"), "device_map='meta': weights there hold no numbers"),
    ],
)
def test_errors_are_one_line_and_status_2(spotkit, tiny, tmp_path, arguments, error):
    other = tmp_path / "other"
    other.mkdir()
    for file in (tiny / "model").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    result = spotkit("generate", *arguments, "--model", other)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert error in result.stderr


def test_an_unknown_option_is_a_usage_error(spotkit):
    result = spotkit("generate", "Hi", "--budgte", "3")
    assert result.exit_code == 2
    assert "--budgte" in result.stderr


def test_a_real_process_reads_a_pipe_and_fails_without_a_traceback(model):
    command = [sys.executable, "-m", "spotkit", "generate", "--model", model, "--max-new-tokens", "4"]
    done = subprocess.run(command, input="Hi", capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    assert done.stderr.count("\n") == 1
    done = subprocess.run([*command, "--top-p", "2"], input="Hi", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: top_p=2.0: give a number in (0, 1] (1 keeps all tokens)\n"


def test_closed_standard_input_is_no_prompt(model):
    command = f'"{sys.executable}" -m spotkit generate --model "{model}" <&-'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: prompt: give it as an argument, or pipe it in\n"
