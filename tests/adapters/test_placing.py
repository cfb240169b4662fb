"""Where weights go: several files, several devices, other numbers, and how much memory that takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spotkit.build import strategy
from spotkit.errors import CheckpointError, ConfigError
from spotkit.loading import load
from spotkit.loop import decode
from spotkit.settings import DecodeConfig

CHECKPOINTS = Path(__file__).parent.parent / "data" / "conformance" / "checkpoints"
MASKS = {"sdar": None, "llada": 127, "llada_moe": 139, "llada2": 131, "dream": 129, "fast_dllm_v2": 123}
FAMILIES = sorted(MASKS)


def written(source: Path, name: str, **options: Any) -> list[tuple[int, ...]]:
    """What the checkpoint writes."""
    target = load(source, dtype="float32", mask_id=MASKS[name], block_length=4, **options)
    made = strategy("freedave", rule="static")
    result = decode(target, [[1, 2, 3, 4, 5], [7, 8]], strategy=made, config=DecodeConfig(max_new_tokens=10))
    assert result.stats.drafted > 0
    return [row.tokens for row in result.rows]


def sharded(name: str, folder: Path, shards: int = 3) -> Path:
    """A copy of a checkpoint whose weights are in several files."""
    shutil.copytree(CHECKPOINTS / name, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: weights[key] for key in sorted(weights)[shard::shards]}
        save_file(part, folder / file, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_several_files(name: str, tmp_path: Path) -> None:
    folder = sharded(name, tmp_path / name)
    assert written(folder, name) == written(CHECKPOINTS / name, name)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index["weight_map"]}))
    with pytest.raises(CheckpointError, match="has no metadata"):
        load(folder, mask_id=MASKS[name])
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"weights missing \(model-00002-of-00003.safetensors\)"):
        load(folder, mask_id=MASKS[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_on_disk_and_on_the_cpu(name: str, tmp_path: Path) -> None:
    """The same text, with most layers read from disk whenever they are needed."""
    parts = {
        "model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "disk",
        "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu",
    }  # fmt: skip
    expected = written(CHECKPOINTS / name, name)
    placed = {"device_map": parts, "offload_folder": tmp_path / "a"}
    assert written(CHECKPOINTS / name, name, **placed) == expected
    model = load(CHECKPOINTS / name, mask_id=MASKS[name], **placed).model
    assert {p.device.type for p in model.parameters()} == {"cpu", "meta"}
    tight = {"device_map": "auto", "max_memory": {"cpu": "300KB"}, "offload_folder": tmp_path / "b"}
    assert written(CHECKPOINTS / name, name, **tight) == expected
    assert (
        "disk" in load(CHECKPOINTS / name, dtype="float32", mask_id=MASKS[name], **tight).model.hf_device_map.values()
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_memory": {"cpu": "1GB"}}, "max_memory={'cpu': '1GB'}: only device_map makes use of it"),
        ({"offload_folder": "x"}, "offload_folder='x': only device_map makes use of it"),
        ({"device_map": "auto", "max_memory": "1GB"}, "max_memory='1GB': give a mapping"),
        ({"device_map": "auto", "max_memory": {"cpu": None}}, "max_memory={'cpu': None}: give a mapping"),
        ({"device_map": "auto", "offload_folder": 5}, "offload_folder=5: give str or Path"),
        ({"quantization_config": "int8"}, "quantization_config='int8': give one of transformers'"),
        ({"quantization_config": 8}, "quantization_config=8: give one of transformers'"),
    ],
)
def test_options_of_placing_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(CHECKPOINTS / "sdar", **options)
    assert words in str(error.value)


# Quantised weights


@pytest.fixture
def halves():
    """A quantiser known to transformers that does nothing but write down that it was asked."""
    from transformers.quantizers import HfQuantizer
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
    from transformers.utils.quantization_config import QuantizationConfigMixin

    asked = []

    class Config(QuantizationConfigMixin):
        quant_method = "halves"

        def __init__(self, bits: int = 8, **_: Any) -> None:
            self.quant_method = "halves"
            self.bits = bits

    class Quantizer(HfQuantizer):
        requires_calibration = False

        def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
            asked.append((type(model).__name__, self.quantization_config.bits))

        def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
            asked.append("done")

        @property
        def is_trainable(self) -> bool:
            return False

        def is_serializable(self) -> bool:
            return False

    AUTO_QUANTIZATION_CONFIG_MAPPING["halves"] = Config
    AUTO_QUANTIZER_MAPPING["halves"] = Quantizer
    yield Config, asked
    del AUTO_QUANTIZATION_CONFIG_MAPPING["halves"], AUTO_QUANTIZER_MAPPING["halves"]


@pytest.mark.parametrize(("name", "kind"), [("sdar", "Qwen3ForCausalLM"), ("llada2", "Glm4MoeForCausalLM")])
def test_quantisation_is_transformers_own(name: str, kind: str, halves, tmp_path: Path) -> None:
    config, asked = halves
    load(CHECKPOINTS / name, mask_id=MASKS[name], quantization_config=config(bits=4))
    assert asked == [(kind, 4), "done"]
    asked.clear()
    folder = tmp_path / name
    shutil.copytree(CHECKPOINTS / name, folder)
    content = json.loads((folder / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "halves", "bits": 2}
    (folder / "config.json").write_text(json.dumps(content))
    load(folder, mask_id=MASKS[name])
    assert asked == [(kind, 2), "done"]


def test_a_quantiser_whose_package_is_missing() -> None:
    from transformers import BitsAndBytesConfig

    with pytest.raises(ConfigError, match="needs a package that is not installed.*bitsandbytes"):
        load(CHECKPOINTS / "sdar", quantization_config=BitsAndBytesConfig(load_in_8bit=True))


# Memory

WATCH = """
    import sys, threading
    import torch
    import spotkit

    def held():
        status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
        return int(status["RssAnon"].split()[0]) * 1024

    small, large, mask = sys.argv[1], sys.argv[2], int(sys.argv[3])
    spotkit.load(small, mask_id=mask)  # everything is imported
    before, most, done = held(), 0, threading.Event()

    def watch():
        global most
        while not done.wait(0.001):
            most = max(most, held())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    target = spotkit.load(large, mask_id=mask)
    done.set()
    thread.join()
    print(most - before)
"""


def grown(name: str, folder: Path) -> tuple[int, int]:
    """A copy of a tiny checkpoint's layout with 100 MB of weights in bfloat16; their bytes, and those of a file."""
    shutil.copytree(CHECKPOINTS / name, folder)
    (folder / "model.safetensors").unlink()
    content = json.loads((folder / "config.json").read_text())
    hidden, vocab, inner, experts = 512, 40_000, 256, 32
    content |= {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 8 * inner, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 128, "torch_dtype": "bfloat16",
    }  # fmt: skip
    embedding = "model.word_embeddings.weight" if name == "llada2" else "model.embed_tokens.weight"
    shapes = {embedding: (vocab, hidden), "lm_head.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(3):
        layer = f"model.layers.{i}."
        shapes |= {layer + f"{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
        if name == "llada2":
            shapes |= {
                layer + "attention.query_key_value.weight": (1024, hidden),
                layer + "attention.dense.weight": (hidden, 512),
                layer + "attention.query_layernorm.weight": (128,),
                layer + "attention.key_layernorm.weight": (128,),
            }
        else:
            shapes |= {layer + f"self_attn.{n}_norm.weight": (128,) for n in "qk"}
            shapes |= {
                layer + f"self_attn.{n}_proj.weight": (r, hidden) for n, r in (("q", 512), ("k", 256), ("v", 256))
            }
            shapes |= {layer + "self_attn.o_proj.weight": (hidden, 512)}
        places = {"mlp.": 8 * inner}
        if name == "llada2" and i:
            places = {f"mlp.experts.{e}.": inner for e in range(experts)} | {"mlp.shared_experts.": inner}
            shapes |= {layer + "mlp.gate.weight": (experts, hidden), layer + "mlp.gate.expert_bias": (experts,)}
        for place, width in places.items():
            shapes |= {layer + place + f"{n}_proj.weight": (width, hidden) for n in ("gate", "up")}
            shapes |= {layer + place + "down_proj.weight": (hidden, width)}
    if name == "llada2":
        content |= {"num_experts": experts, "moe_intermediate_size": inner}
    (folder / "config.json").write_text(json.dumps(content))
    weights = {key: torch.zeros(shape, dtype=torch.bfloat16) for key, shape in shapes.items()}
    index, part, held, file, widest = {}, {}, 0, 0, 0
    for number, (key, weight) in enumerate(weights.items()):
        part[key] = weight
        held += weight.nbytes
        if held > 20e6 or number == len(weights) - 1:
            path = f"model-{file}.safetensors"
            save_file(part, folder / path, {"format": "pt"})
            index |= dict.fromkeys(part, path)
            widest = max(widest, held)
            part, held, file = {}, 0, file + 1
    assert file > 2
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return sum(w.nbytes for w in weights.values()), widest


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
@pytest.mark.parametrize("name", ["sdar", "llada2"])
def test_loading_takes_no_more_than_the_weights_and_one_file(name: str, tmp_path: Path) -> None:
    size, file = grown(name, tmp_path / name)
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(WATCH),
        CHECKPOINTS / name,
        tmp_path / name,
        str(MASKS[name] or 119),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= size + file
