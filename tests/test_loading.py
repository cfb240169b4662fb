"""Finding a checkpoint and its adapter, and what is said when that fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spotkit import embedded
from spotkit.errors import CheckpointError, ConfigError, PartError, UnknownNameError
from spotkit.loading import load, tokenizer_of
from spotkit.registry import ADAPTERS, Registry
from spotkit.testing.conformance import run_file

DATA = Path(__file__).parent / "data" / "conformance"
SDAR = DATA / "checkpoints" / "sdar"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint that may be spoiled."""
    return shutil.copytree(SDAR, tmp_path / "mine")


def write_tokenizer(folder: Path, words: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0} | {f"w{i}": i for i in range(1, words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


# Sources


def test_folder_as_text_or_path() -> None:
    assert load(str(SDAR)).spec == load(SDAR).spec
    assert load(SDAR).spec.name == "sdar"


def test_the_word_embedded_means_the_shipped_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "path", lambda: folder)
    assert load("embedded").spec.name == "embedded"


@pytest.mark.parametrize("source", ["no/such/folder/here", "nowhere", "/nowhere", Path("a/b"), "owner/na me"])
def test_no_such_folder(source: str | Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder; give a checkpoint's folder or a hub id"):
        load(source)


def test_hub_id_that_was_not_downloaded() -> None:
    with pytest.raises(CheckpointError, match=r"owner/name: neither a folder nor.*hf download owner/name"):
        load("owner/name", local_files_only=True)


def test_offline_what_was_downloaded_is_found(tmp_path: Path) -> None:
    """In a process of its own, as the hub's library reads its settings once; `hub` is laid out as it lays it out."""
    repo = tmp_path / "hub/models--owner--name"
    commit = "0" * 40
    shutil.copytree(SDAR, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text(commit)
    code = (
        "import spotkit\n"
        "target = spotkit.load('owner/name')\n"
        "print(target.spec.name, target.spec.vocab_size)\n"
        "try:\n"
        "    spotkit.load('owner/other')\n"
        "except spotkit.CheckpointError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert first == "owner/name 120"
    assert second.startswith("owner/other: neither a folder nor to be had from the hub")


def test_hub_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot_download(source: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append((source, tuple(allow_patterns), local_files_only))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load("owner/name").spec.name == "owner/name"
    assert asked[0] == ("owner/name", ("config.json",), False)
    assert "*.safetensors" in asked[1][1]
    assert not any("py" in pattern or "bin" in pattern for pattern in asked[1][1])


def test_config_is_read_before_weights_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda source, **options: asked.append(options) or str(tmp_path)
    )
    with pytest.raises(UnknownNameError):
        load("owner/name")
    assert len(asked) == 1


def test_source_of_another_kind() -> None:
    with pytest.raises(ConfigError, match="source=None: give a folder"):
        load(None)


# Faulty folders


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json: cannot be read as JSON"),
        (lambda f: (f / "config.json").write_text("[]"), r"config\.json: holds list"),
        (lambda f: (f / "model.safetensors").unlink(), r"weights missing \(model\.safetensors\)"),
        (lambda f: (f / "generation_config.json").write_text("?"), r"generation_config\.json: cannot be read"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "the tokenizer cannot be read"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-7.safetensors"}}'),
            r"weights missing \(model-7\.safetensors\)",
        ),
    ],
)
def test_faulty_folder(folder: Path, spoil, message: str) -> None:
    spoil(folder)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


# Adapters


def test_unknown_model_type(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba_diffusion", "architectures": ["MDM"]}))
    with pytest.raises(UnknownNameError) as error:
        load(folder)
    for part in ("model_type='mamba_diffusion'", "['MDM']", "Installed:", "sdar", "'spotkit.adapters'"):
        assert part in str(error.value)


def test_adapter_by_name(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "mine", "architectures": None}
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder, adapter="sdar").spec.fingerprint == load(SDAR).spec.fingerprint
    with pytest.raises(UnknownNameError, match="adapter='sdr'.*Did you mean 'sdar'"):
        load(folder, adapter="sdr")


@pytest.mark.parametrize("name", [None, "broken"])
def test_an_adapter_that_fails_hinders_no_other(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    class Broken:
        def matches(self, config: object) -> bool:
            raise KeyError("mine")

        def load(self, folder: Path, *, config: object, options: object) -> object:
            return None

    registry = Registry("adapter", "spotkit.adapters")
    registry.register("broken", Broken())
    monkeypatch.setattr("spotkit.loading.ADAPTERS", registry)
    if name is None:
        assert load(SDAR).spec.name == "sdar"
        assert registry.failures["broken"] == "matches() raised KeyError: 'mine'"
    else:
        with pytest.raises(PartError, match="must return a target, got NoneType"):
            load(SDAR, adapter=name)


def test_two_adapters_that_know_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry("adapter", "spotkit.adapters")
    registry.register("other", ADAPTERS.get("sdar"))
    monkeypatch.setattr("spotkit.loading.ADAPTERS", registry)
    with pytest.raises(ConfigError, match="adapter=None: other, sdar all know"):
        load(SDAR)
    assert load(SDAR, adapter="other").spec.name == "sdar"


def test_cases_of_a_family_without_adapter(tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    (tmp_path / "checkpoints" / "odd").mkdir(parents=True)
    (tmp_path / "checkpoints/odd/config.json").write_text('{"model_type": "odd"}')
    content = {"family": "odd", "checkpoint": "checkpoints/odd", "cases": [{"id": "odd-1"}]}
    (tmp_path / "cases/odd.json").write_text(json.dumps(content))
    with pytest.raises(UnknownNameError, match="model_type='odd'.*no adapter knows it"):
        run_file(tmp_path / "cases/odd.json")
    with pytest.raises(CheckpointError, match="not a case file"):
        run_file(SDAR / "config.json")


def test_a_case_that_fails_is_told(tmp_path: Path) -> None:
    content = json.loads((DATA / "cases/sdar.json").read_text())
    good, wrong, slow = (dict(content["cases"][1]) for _ in range(3))
    wrong |= {"id": "wrong", "expected_ids": [*wrong["expected_ids"][:-1], 3]}
    slow |= {"id": "slow", "forward_calls": 2}
    (tmp_path / "cases").mkdir()
    shutil.copytree(SDAR, tmp_path / "checkpoints/sdar")
    (tmp_path / "cases/few.json").write_text(json.dumps(content | {"cases": [good, wrong, slow]}))
    report = run_file(tmp_path / "cases/few.json")
    assert (report.passed, report.ok) == (1, False)
    assert [f.case for f in report.failed] == ["wrong", "slow"]
    assert report.failed[0].difference.endswith("expected 3")
    assert report.failed[1].difference.endswith("passes, the official loop 2")


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_length": 0}, "block_length=0: "),
        ({"block_length": 4.0}, "block_length=4.0: "),
        (
            {"attn_implementation": "flash_attention_2"},
            "attn_implementation='flash_attention_2': choose one of sdpa, e",
        ),
        ({"layout": "forest"}, "layout='forest': choose one of tree, batch"),
        ({"dtype": "int8"}, "dtype='int8': choose one of auto, bfloat16"),
        ({"dtype": torch.int64}, "dtype='int64': "),
        ({"device_map": "gpu"}, "device_map='gpu': give a device"),
        ({"device_map": "meta"}, "device_map='meta': weights there hold no numbers"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(SDAR, **options)
    assert str(error.value).startswith(message)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="device_map='cuda:0': this torch sees no CUDA device"):
        load(SDAR, device_map="cuda:0")


@pytest.mark.parametrize("dtype", [None, "auto", "float32", torch.float32])
def test_types_of_weights(dtype) -> None:
    assert load(SDAR, dtype=dtype).model.dtype == torch.float32


# Tokenizer


def test_tokenizer(folder: Path) -> None:
    write_tokenizer(folder, words=101)
    target = load(folder)
    assert target.spec.token_limit == 101
    assert tokenizer_of(target)("w5 w7")["input_ids"] == [5, 7]


def test_tokenizer_wider_than_the_model_sets_no_limit(folder: Path) -> None:
    write_tokenizer(folder, words=200)
    assert load(folder).spec.token_limit is None


def test_code_named_by_the_tokenizer_is_not_run(folder: Path) -> None:
    write_tokenizer(folder, words=100)
    config = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('this must not run')")
    assert tokenizer_of(load(folder))("w5")["input_ids"] == [5]


def test_vocabulary_and_merges_in_files_of_their_own(folder: Path) -> None:
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    assert tokenizer_of(load(folder))("ab")["input_ids"] == [2]


def test_no_tokenizer() -> None:
    target = load(SDAR)
    assert target.tokenizer is None
    with pytest.raises(CheckpointError, match="tokenizer: sdar came without one"):
        tokenizer_of(target)
