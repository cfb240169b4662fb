"""What a `config.json` may not say, in any family."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from spotkit.errors import CheckpointError, SpotkitError, UnknownNameError
from spotkit.loading import load

CHECKPOINTS = Path(__file__).parents[1] / "data" / "conformance" / "checkpoints"
FAMILIES = sorted(folder.name for folder in CHECKPOINTS.iterdir())


def copied(folder: Path, family: str = "sdar", *, file: str = "config.json", **changes: object) -> Path:
    """A checkpoint with some entries of a JSON file changed; None takes one out."""
    shutil.copytree(CHECKPOINTS / family, folder)
    path = folder / file
    entries = (json.loads(path.read_text()) if path.exists() else {}) | changes
    path.write_text(json.dumps({name: value for name, value in entries.items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"head_dim": None}, "config.json lacks head_dim"),
        ({"rope_theta": None}, "config.json lacks rope_theta"),
        ({"mask_token_id": None}, "mask_token_id=None"),
        ({"mask_token_id": 118}, r"mask_token_id=118.*end tokens \[118, 117\]"),
        ({"mask_token_id": 500}, "within the 120"),
        ({"mask_token_id": 1.0}, "mask_token_id=1.0"),
        ({"mask_token_id": True}, "mask_token_id=True"),
        ({"vocab_size": "900"}, "vocab_size='900'"),
        ({"vocab_size": 900.0}, "vocab_size=900.0"),
        ({"vocab_size": True}, "vocab_size=True"),
        ({"vocab_size": -1}, "vocab_size=-1"),
        ({"hidden_size": "wide"}, "hidden_size='wide'"),
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"num_hidden_layers": [2]}, r"num_hidden_layers=\[2\]"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps='1e-6'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings=1"),
        ({"hidden_act": 5}, "hidden_act=5"),
        ({"hidden_act": "foo"}, "foo"),
        ({"rope_scaling": "x"}, "rope_scaling='x'"),
        ({"rope_scaling": [1]}, r"rope_scaling=\[1\]"),
        ({"rope_parameters": "abc"}, "rope_parameters='abc'"),
        ({"rope_parameters": [1]}, r"rope_parameters=\[1\]"),
        ({"dtype": "foo"}, "config.json does not fit Qwen3"),
        ({"quantization_config": 5}, "cannot be loaded"),
    ],
)
def test_wrong_config(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        load(copied(tmp_path / "c", **changes))


@pytest.mark.parametrize("value", [2.0, ["a"], [2.5], "abc", {"a": 1}, [10**7], -1, True, [[1]]])
def test_end_tokens_are_ids_of_the_vocabulary(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="eos_token_id="):
        load(copied(tmp_path / "c", file="generation_config.json", eos_token_id=value))


@pytest.mark.parametrize("value", [{}, {"a": 5}, {"a": ["x"]}, {"a": ""}, {"a": "x.bin"}, [1], "x", None])
def test_an_index_names_safetensors_files(tmp_path: Path, value: object) -> None:
    folder = copied(tmp_path / "c", file="model.safetensors.index.json", weight_map=value)
    with pytest.raises(CheckpointError, match="weight_map names no safetensors files"):
        load(folder)


@pytest.mark.parametrize("value", [5, None, [], [5], {"a": 1}, "Other", ["Other"]])
@pytest.mark.parametrize("family", FAMILIES)
def test_architectures_of_any_type_are_read(tmp_path: Path, family: str, value: object) -> None:
    folder = copied(tmp_path / "c", family, architectures=value, model_type="other")
    with pytest.raises(UnknownNameError, match="model_type='other'"):
        load(folder)


@pytest.mark.parametrize("value", ["900", 7.5, -3, 0, True, [2], {"a": 1}, "x" * 10])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_entry_of_every_family_may_be_wrong(tmp_path: Path, family: str, value: object) -> None:
    """Whatever is in the file, loading says so in its own words or has no use for the entry."""
    entries = json.loads((CHECKPOINTS / family / "config.json").read_text())
    shutil.copytree(CHECKPOINTS / family, tmp_path / "c")
    refused = 0
    for name in entries:
        (tmp_path / "c" / "config.json").write_text(json.dumps(entries | {name: value}))
        try:
            load(tmp_path / "c")
        except SpotkitError:
            refused += 1
    assert refused >= 7


def test_nested_beyond_all_measure(tmp_path: Path) -> None:
    folder = copied(tmp_path / "c")
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        load(folder)
