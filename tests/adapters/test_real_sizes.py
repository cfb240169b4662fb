"""Checkpoints of the official sizes: every official weight has its place in transformers' class, no place is empty.

The files have the headers of the real ones and holes instead of numbers, so that gigabytes take no room.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import save_file

from spotkit.errors import CheckpointError
from spotkit.inspection import inspect
from spotkit.loading import load
from spotkit.logprobs import Sampling
from spotkit.rules import Static
from spotkit.settings import DecodeConfig
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case, check_exact
from spotkit.testing.drafters import Clairvoyant

Entry = tuple[str, tuple[int, ...]]


def qwen(c: dict[str, Any], *, bias: bool = False, norms: bool = True, experts: bool = False) -> Iterator[Entry]:
    """Names and shapes of SDAR, TraDo, Dream, Fast-dLLM v2 and LLaDA-MoE."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    width = c.get("head_dim", hidden // heads)
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        for letter, count in (("q", heads), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
            yield layer + f"self_attn.{letter}_proj.weight", (count * width, hidden)
            if bias:
                yield layer + f"self_attn.{letter}_proj.bias", (count * width,)
            if norms and letter != "v":
                yield layer + f"self_attn.{letter}_norm.weight", (width,)
        yield layer + "self_attn.o_proj.weight", (hidden, heads * width)
        if experts:
            yield layer + "mlp.gate.weight", (c["num_experts"], hidden)
            inner = c.get("moe_intermediate_size") or c["expert_intermediate_size"]
            for expert in range(c["num_experts"]):
                yield from mlp(layer + f"mlp.experts.{expert}.", hidden, inner)
        else:
            yield from mlp(layer + "mlp.", hidden, c["intermediate_size"])


def mlp(name: str, hidden: int, inner: int) -> Iterator[Entry]:
    yield name + "gate_proj.weight", (inner, hidden)
    yield name + "up_proj.weight", (inner, hidden)
    yield name + "down_proj.weight", (hidden, inner)


def llada(c: dict[str, Any]) -> Iterator[Entry]:
    hidden, inner, base = c["d_model"], c["mlp_hidden_size"], "model.transformer."
    grouped = c["n_kv_heads"] * hidden // c["n_heads"]
    yield base + "wte.weight", (c["embedding_size"], hidden)
    yield base + "ln_f.weight", (hidden,)
    if not c["weight_tying"]:
        yield base + "ff_out.weight", (c["embedding_size"], hidden)
    for i in range(c["n_layers"]):
        block = f"{base}blocks.{i}."
        yield block + "attn_norm.weight", (hidden,)
        yield block + "ff_norm.weight", (hidden,)
        yield block + "q_proj.weight", (hidden, hidden)
        yield block + "k_proj.weight", (grouped, hidden)
        yield block + "v_proj.weight", (grouped, hidden)
        yield block + "attn_out.weight", (hidden, hidden)
        yield block + "ff_proj.weight", (inner, hidden)
        yield block + "up_proj.weight", (inner, hidden)
        yield block + "ff_out.weight", (hidden, inner)


def llada2(c: dict[str, Any]) -> Iterator[Entry]:
    hidden, heads, groups, width = (
        c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    yield "model.word_embeddings.weight", (c["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "attention.query_key_value.weight", ((heads + 2 * groups) * width, hidden)
        yield layer + "attention.dense.weight", (hidden, heads * width)
        yield layer + "attention.query_layernorm.weight", (width,)
        yield layer + "attention.key_layernorm.weight", (width,)
        if i < c["first_k_dense_replace"]:
            yield from mlp(layer + "mlp.", hidden, c["intermediate_size"])
            continue
        yield layer + "mlp.gate.weight", (c["num_experts"], hidden)
        yield layer + "mlp.gate.expert_bias", (c["num_experts"],)
        for expert in range(c["num_experts"]):
            yield from mlp(layer + f"mlp.experts.{expert}.", hidden, c["moe_intermediate_size"])
        yield from mlp(layer + "mlp.shared_experts.", hidden, c["moe_intermediate_size"] * c["num_shared_experts"])


def dense(hidden: int, layers: int, heads: int, groups: int, inner: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": groups, "intermediate_size": inner, "vocab_size": vocab, "rope_theta": 1e6,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def sdar(*sizes: int, **more: Any) -> dict[str, Any]:
    return dense(*sizes, 151936, head_dim=128, **more) | {
        "model_type": "sdar", "architectures": ["SDARForCausalLM"], "mask_token_id": 151669,
    }  # fmt: skip


DREAM = dense(3584, 28, 28, 4, 18944, 152064, model_type="Dream", architectures=["DreamModel"])
FAST = {"model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"], "bd_size": 32}
LLADA = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 4096, "n_layers": 32, "n_heads": 32,
    "n_kv_heads": 32, "mlp_hidden_size": 12288, "embedding_size": 126464, "vocab_size": 126464, "rope_theta": 5e5,
    "rms_norm_eps": 1e-5, "weight_tying": False, "max_sequence_length": 4096,
}  # fmt: skip
EXPERTS = {
    "model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"], "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


@attrs.frozen
class Size:
    """A released checkpoint: its config, its weights, how many there are (1e9), and what it should be read as."""

    config: dict[str, Any]
    entries: list[Entry]
    billions: float
    adapter: str
    mask_id: int
    blocks: int | None


def size(config: dict[str, Any], entries: Iterator[Entry], *rest: Any) -> Size:
    return Size(config, list(entries), *rest)


def sizes(name: str) -> Size:
    """The checkpoint of that name, as far as it is known (`models.md` of the design notes; model cards)."""
    if name == "SDAR-1.7B-Chat":
        c = sdar(2048, 28, 16, 8, 6144, tie_word_embeddings=True)
        return size(c, qwen(c), 1.72, "sdar", 151669, 4)
    if name == "SDAR-4B-Chat":
        c = sdar(2560, 36, 32, 8, 9728)
        return size(c, qwen(c), 4.41, "sdar", 151669, 4)
    if name in ("SDAR-8B-Chat-b16", "TraDo-8B-Instruct"):
        c = sdar(4096, 36, 32, 8, 12288) | ({"block_size": 16} if "b16" in name else {})
        return size(c, qwen(c), 8.19, "sdar", 151669, 16 if "b16" in name else 4)
    if name == "SDAR-30B-A3B-Chat":
        c = sdar(2048, 48, 32, 4, 6144) | EXPERTS
        return size(c, qwen(c, experts=True), 30.5, "sdar", 151669, 4)
    if name == "LLaDA-8B-Instruct":
        return size(LLADA, llada(LLADA), 8.02, "llada", 126336, 32)
    if name == "iLLaDA-8B-Instruct":
        c = LLADA | {"n_kv_heads": 8, "mlp_hidden_size": 14336, "embedding_size": 155136, "weight_tying": True}
        return size(c | {"mask_token_id": 5}, llada(c), 7.6, "llada", 5, 32)
    if name == "Dream-v0-Instruct-7B":
        return size(DREAM, qwen(DREAM, bias=True, norms=False), 7.62, "dream", 151666, None)
    if name == "Fast_dLLM_v2_7B":
        c = dense(3584, 28, 28, 4, 18944, 152064) | FAST
        return size(c, qwen(c, bias=True, norms=False), 7.62, "fast_dllm_v2", 151665, 32)
    if name == "Fast_dLLM_v2_1.5B":
        c = dense(1536, 28, 12, 2, 8960, 151936, tie_word_embeddings=True) | FAST
        return size(c, qwen(c, bias=True, norms=False), 1.54, "fast_dllm_v2", 151665, 32)
    if name == "LLaDA-MoE-7B-A1B-Instruct":
        c = dense(2048, 16, 16, 16, 8192, 157184, rope_theta=5e4) | {
            "model_type": "llada", "architectures": ["LLaDAMoEModelLM"], "num_experts": 64, "num_experts_per_tok": 8,
            "expert_intermediate_size": 1024, "qk_layernorm": True,
        }  # fmt: skip
        return size(c, qwen(c, experts=True), 7.36, "llada_moe", 156895, 32)
    assert name == "LLaDA2.0-mini"
    c = dense(2048, 20, 16, 4, 5120, 157184, head_dim=128) | {
        "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "num_experts": 256,
        "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 512, "n_group": 8,
        "topk_group": 4, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "partial_rotary_factor": 0.5, "score_function": "sigmoid", "rope_theta": 6e5,
    }  # fmt: skip
    return size(c, llada2(c), 16.26, "llada2", 156895, 32)


NAMES = (
    "SDAR-1.7B-Chat", "SDAR-4B-Chat", "SDAR-8B-Chat-b16", "TraDo-8B-Instruct", "SDAR-30B-A3B-Chat",
    "LLaDA-8B-Instruct", "iLLaDA-8B-Instruct", "Dream-v0-Instruct-7B", "Fast_dLLM_v2_7B", "Fast_dLLM_v2_1.5B",
    "LLaDA-MoE-7B-A1B-Instruct", "LLaDA2.0-mini",
)  # fmt: skip


def write(folder: Path, config: dict[str, Any], entries: list[Entry], shards: int = 3) -> None:
    """A checkpoint in bfloat16 with holes for numbers, in several files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", **config}))
    places = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header, end = {}, 0
        for name, shape in entries[shard::shards]:
            begin = end
            end += 2 * prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
            places[name] = file
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def prod(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


@pytest.mark.parametrize("name", NAMES)
def test_every_official_weight_has_its_place(name: str, tmp_path: Path) -> None:
    known = sizes(name)
    write(tmp_path / name, known.config, known.entries)
    found = inspect(tmp_path / name)
    assert found.faults == ()
    assert found.adapter == known.adapter
    count = sum(prod(shape) for _, shape in known.entries)
    assert found.parameters == count - unlearnt(known)
    assert count / 1e9 == pytest.approx(known.billions, rel=0.01)
    assert found.stored == {"bfloat16": 2 * count}
    assert found.memory["bfloat16"] == 2 * found.parameters
    assert found.files == 3
    assert found.spec is not None
    assert (found.spec.name, found.spec.mask_id) == (name, known.mask_id)
    if known.blocks is None:
        assert found.spec.block_grid == "answer"
    else:
        assert found.spec.block_length == known.blocks


def unlearnt(known: Size) -> int:
    """Weights that transformers' class keeps beside its parameters: the bias that corrects the choice of experts."""
    return sum(prod(shape) for name, shape in known.entries if name.endswith("expert_bias"))


def native(key: str) -> str:
    """The start of a weight's name in transformers' class."""
    return key if ".experts." in key else "model.layers.3."


@pytest.mark.parametrize("name", ["SDAR-1.7B-Chat", "LLaDA-8B-Instruct", "Fast_dLLM_v2_1.5B", "LLaDA2.0-mini"])
def test_a_weight_too_few_or_too_many_or_of_another_shape(name: str, tmp_path: Path) -> None:
    known = sizes(name)
    lost = next(i for i, (key, _) in enumerate(known.entries) if ".3." in key and len(known.entries[i][1]) == 2)
    key, shape = known.entries[lost]
    rest = known.entries[:lost] + known.entries[lost + 1 :]
    write(tmp_path / "few", known.config, rest)
    write(tmp_path / "many", known.config, [*known.entries, ("model.stray.weight", (3,))])
    write(tmp_path / "other", known.config, [*rest, (key, (shape[0] + 2, shape[1]))])
    few, many, other = (inspect(tmp_path / folder).faults for folder in ("few", "many", "other"))
    assert len(few) == len(many) == len(other) == 1
    assert re.search("missing .*" + re.escape(native(key)), few[0])
    assert "not in the model model.stray.weight" in many[0]
    assert re.search(f"of another shape|{key} is .*, the others", other[0])


@pytest.fixture(scope="module")
def small_experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A tiny SDAR with experts in the layout of the released one, with random weights."""
    config = dense(48, 2, 4, 2, 64, 90, head_dim=16, torch_dtype="float32") | EXPERTS
    config |= {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mask_token_id": 89}
    numbers = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=numbers) * (0.3 if len(shape) > 1 else 0.1) + (len(shape) == 1)
        for name, shape in qwen(config, experts=True)
    }
    folder = tmp_path_factory.mktemp("sdar_moe")
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 88, "block_size": 4}))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder, weights


def test_sdar_with_experts_scores_as_the_weights_say(small_experts) -> None:
    """Against a forward pass written out by hand from the official weights, block-causal."""
    folder, weights = small_experts
    ids = torch.randint(85, (12,), generator=torch.Generator().manual_seed(1))
    expected = by_hand(weights, ids)
    for layout in ("tree", "batch"):
        target = load(folder, layout=layout)
        assert type(target.model).__name__ == "Qwen3MoeForCausalLM"
        context = target.open([ids[:8]], max_new_tokens=4)
        logits, _ = target.score(ids[8:].view(1, 1, -1).expand(1, 3, -1), context=context)
        for state in logits[0]:
            torch.testing.assert_close(state, expected[8:], rtol=0, atol=1e-4)


def by_hand(weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weights[name]

    def turned(x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(len(ids)).view(-1, 1) / 1e6 ** (torch.arange(0, 16, 2) / 16)
        angles = torch.cat([angles, angles], -1).view(len(ids), 1, 16)
        return x * angles.cos() + torch.cat([-x[..., 8:], x[..., :8]], -1) * angles.sin()

    x = weights["model.embed_tokens.weight"][ids]
    block = torch.arange(len(ids)) // 4
    for i in range(2):
        layer = f"model.layers.{i}."
        y = norm(x, layer + "input_layernorm.weight")
        q, k, v = (
            (y @ weights[layer + f"self_attn.{n}_proj.weight"].T).view(len(ids), heads, 16)
            for n, heads in (("q", 4), ("k", 2), ("v", 2))
        )
        q = turned(norm(q, layer + "self_attn.q_norm.weight"))
        k = turned(norm(k, layer + "self_attn.k_norm.weight")).repeat_interleave(2, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / 4
        share = scores.masked_fill(block.view(-1, 1) < block, -torch.inf).softmax(-1)
        seen = torch.einsum("hij,jhd->ihd", share, v.repeat_interleave(2, 1)).flatten(1)
        x = x + seen @ weights[layer + "self_attn.o_proj.weight"].T
        y = norm(x, layer + "post_attention_layernorm.weight")
        chances = (y @ weights[layer + "mlp.gate.weight"].T).softmax(-1)
        best, chosen = chances.topk(2, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        for place in range(len(ids)):
            for rank in range(2):
                expert = layer + f"mlp.experts.{int(chosen[place, rank])}."
                gate, up = (weights[expert + f"{n}_proj.weight"] @ y[place] for n in ("gate", "up"))
                inner = torch.nn.functional.silu(gate) * up
                x[place] = x[place] + best[place, rank] * (weights[expert + "down_proj.weight"] @ inner)
    return norm(x, "model.norm.weight") @ weights["lm_head.weight"].T


@pytest.mark.parametrize("layout", ["tree", "batch"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sdar_with_experts_drafts_exactly(small_experts, layout: str, temperature: float) -> None:
    target = load(small_experts[0], layout=layout)
    config = DecodeConfig(max_new_tokens=14, sampling=Sampling(temperature), seed=3, finish_block=True)
    case = Case(target, ((1, 2, 3, 4, 5), (7, 8)), (0, 1), Static(), config, budget=6, window=2)
    plain = case.plain()
    assert check_exact(case, Clairvoyant.of(plain, case.row_ids), plain).stats.accepted > plain.stats.steps // 2
    assert check_exact(case, FreeDave(), plain).stats.drafted > 0


@pytest.mark.parametrize("change", [{"decoder_sparse_step": 2}, {"mlp_only_layers": [1]}])
def test_sdar_with_layers_without_experts_is_refused(small_experts, change: dict[str, Any], tmp_path: Path) -> None:
    content = json.loads((small_experts[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | change))
    with pytest.raises(CheckpointError, match=next(iter(change))):
        load(tmp_path)
