"""The SDAR adapter against official logits and texts, and against itself in every layout."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from spotkit.acceptance import StateEquality
from spotkit.adapters.block_causal import BlockCausal
from spotkit.errors import CheckpointError, ConfigError
from spotkit.loading import load
from spotkit.loop import decode
from spotkit.rules import Static
from spotkit.settings import DecodeConfig, Strategy
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.conformance import run_file

DATA = Path(__file__).parent.parent / "data" / "conformance"
FAMILIES = ("sdar", "trado")
ATTENTION = ("sdpa", "eager")
LAYOUTS = ("tree", "batch")
MASK = 119


@functools.cache
def target(family: str = "sdar", attention: str = "sdpa", layout: str = "tree", length: int = 4) -> BlockCausal:
    folder = DATA / "checkpoints" / family
    return load(folder, dtype="float32", attn_implementation=attention, layout=layout, block_length=length)


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(MASK, shape, generator=torch.Generator().manual_seed(seed))


def close(left: torch.Tensor, right: torch.Tensor, within: float = 1e-4) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=within)


def fresh_logits(of: BlockCausal, heads: list[torch.Tensor], canvases: torch.Tensor) -> torch.Tensor:
    """Every canvas in a pass of its own, its row alone and without a cache: what all layouts must equal."""
    rows = []
    for head, row in zip(heads, canvases, strict=True):
        whole = [torch.cat([head, canvas]).view(1, 1, -1) for canvas in row]
        empty = of.open([head[:0]], max_new_tokens=1)
        rows.append(torch.cat([of.score(one, context=empty)[0][:, :, len(head) :] for one in whole], 1))
    return torch.cat(rows)


def copied(folder: Path, family: str = "sdar", **changes: object) -> Path:
    """A checkpoint of its own with other entries in `config.json` (None removes one)."""
    shutil.copytree(DATA / "checkpoints" / family, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def reweighted(folder: Path, change) -> Path:
    copied(folder)
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", {"format": "pt"})
    return folder


# Against the official code


@pytest.mark.parametrize(("attention", "layout"), [("sdpa", "tree"), ("eager", "batch")])
@pytest.mark.parametrize("family", FAMILIES)
def test_official_cases(family: str, attention: str, layout: str) -> None:
    report = run_file(DATA / "cases" / f"{family}.json", attn_implementation=attention, layout=layout)
    assert report.ok, report.failed
    assert (report.family, report.passed) == (family, 21)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", FAMILIES)
def test_official_logits(family: str, attention: str, layout: str) -> None:
    of = target(family, attention, layout)
    reference = load_file(DATA / "checkpoints" / family / "reference_logits.safetensors")
    whole = reference["ids"][0]
    full, _ = of.score(whole.view(1, 1, -1), context=of.open([whole[:0]], max_new_tokens=1))
    close(full[0], reference["full_logits"])
    last = whole[-4:].expand(1, 3, 4)
    fresh, context = of.score(last, context=of.open([whole[:-4]], max_new_tokens=1))
    cached, _ = of.score(last, context=context)
    for logits in (*fresh[0], *cached[0]):
        close(logits, reference["block_logits"][0])


# Layouts, caches and contexts

HEADS = [ids(12, seed=1), ids(0), ids(28, seed=2)]
CANVASES = ids(3, 5, 12, seed=3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ATTENTION)
def test_ragged_rows_score_as_each_state_alone(attention: str, layout: str) -> None:
    of = target(attention=attention, layout=layout)
    expected = fresh_logits(of, HEADS, CANVASES)
    pending, context = of.score(CANVASES, context=of.open(HEADS, max_new_tokens=1))
    cached, _ = of.score(CANVASES[:, :3], context=context)
    close(pending, expected)
    close(cached, expected[:, :3])


@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_block_lengths(layout: str, length: int) -> None:
    of = target(layout=layout, length=length)
    heads, canvases = [ids(3 * length), ids(length, seed=1)], ids(2, 3, 2 * length)
    logits, _ = of.score(canvases, context=of.open(heads, max_new_tokens=1))
    close(logits, fresh_logits(of, heads, canvases))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_extended_context_equals_one_opened_anew(layout: str) -> None:
    of = target(layout=layout)
    heads, context = list(HEADS), of.open(HEADS, max_new_tokens=1)
    for turn, rows in enumerate([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 0]]):
        block = ids(3, 4, seed=10 + turn)
        grows = torch.tensor(rows, dtype=torch.bool)
        context = of.extend(context, block=block, rows=grows)
        heads = [torch.cat([h, b]) if r else h for h, b, r in zip(heads, block, rows, strict=True)]
        if turn % 2:  # so that more than one block is pending at times
            logits, context = of.score(CANVASES, context=context)
            close(logits, fresh_logits(of, heads, CANVASES))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_contexts_are_values(layout: str) -> None:
    of = target(layout=layout)
    opened = of.open(HEADS, max_new_tokens=1)
    first, scored = of.score(CANVASES, context=opened)
    everyone = torch.ones(3, dtype=torch.bool)
    branches = []
    for seed in (20, 21):
        block = ids(3, 4, seed=seed)
        longer = of.extend(scored, block=block, rows=everyone)
        heads = [torch.cat([h, b]) for h, b in zip(HEADS, block, strict=True)]
        expected = fresh_logits(of, heads, CANVASES)
        logits, after = of.score(CANVASES, context=longer)
        close(logits, expected)
        branches.append((longer, after, expected))
    for context in (scored, opened, scored):
        close(of.score(CANVASES, context=context)[0], first)
    for longer, after, expected in branches:
        for context in (after, longer, after):
            close(of.score(CANVASES, context=context)[0], expected)


def test_two_decodes_from_one_context_interleave() -> None:
    of = target()
    rows = torch.ones(1, dtype=torch.bool)
    _, shared = of.score(ids(1, 2, 4), context=of.open([ids(8)], max_new_tokens=1))
    states = [(shared, ids(8)), (shared, ids(8))]
    for turn in range(5):
        for i, (context, head) in enumerate(states):
            block = ids(1, 4, seed=100 * i + turn)
            context = of.extend(context, block=block, rows=rows)
            head = torch.cat([head, block[0]])
            logits, context = of.score(CANVASES[:1], context=context)
            close(logits, fresh_logits(of, [head], CANVASES[:1]))
            states[i] = (context, head)


def test_appending_does_not_copy_the_prefix() -> None:
    of = target()
    context = of.open([ids(40), ids(8, seed=1)], max_new_tokens=1)
    places = set()
    for turn in range(16):
        _, context = of.score(ids(2, 3, 4), context=context)
        places.add(context.store.layers[0][0].data_ptr())
        context = of.extend(context, block=ids(2, 4, seed=turn), rows=torch.ones(2, dtype=torch.bool))
    assert len(places) <= 3, "buffers must grow by doubling"


def test_one_model_call_per_score_and_none_besides() -> None:
    of = target()
    calls: list[int] = []
    handle = of.model.register_forward_hook(lambda *_: calls.append(1))
    try:
        context = of.open(HEADS, max_new_tokens=1)
        context = of.extend(context, block=ids(3, 4), rows=torch.ones(3, dtype=torch.bool))
        assert not calls
        of.score(CANVASES, context=context)
        assert len(calls) == 1
    finally:
        handle.remove()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_sees_whom(layout: str) -> None:
    of = target(layout=layout)
    context = of.open([ids(12)], max_new_tokens=1)
    canvases = ids(1, 3, 12, seed=5)
    before, _ = of.score(canvases, context=context)
    changed = canvases.clone()
    changed[0, 1, 6] = (changed[0, 1, 6] + 1) % MASK
    after, _ = of.score(changed, context=context)
    moved = (before - after).abs().amax(-1)[0] > 1e-3
    assert moved[1, 4:].all(), "its own block and later ones see a changed position"
    assert not moved[1, :4].any(), "earlier blocks do not"
    assert not moved[[0, 2]].any(), "nor do other states"


def test_wrong_shapes_are_refused() -> None:
    of = target()
    with pytest.raises(ConfigError, match=r"prompts\[1\]: 3 ids; give whole blocks of 4"):
        of.open([ids(4), ids(3)], max_new_tokens=1)
    with pytest.raises(ConfigError, match="2 rows for a context of 1"):
        of.score(ids(2, 1, 4), context=of.open([ids(4)], max_new_tokens=1))


# Numbers and places


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ATTENTION)
def test_bfloat16(attention: str, layout: str) -> None:
    narrow = load(DATA / "checkpoints/sdar", dtype="bfloat16", attn_implementation=attention, layout=layout)
    logits, _ = narrow.score(CANVASES, context=narrow.open(HEADS, max_new_tokens=1))
    assert logits.dtype == torch.bfloat16
    # Random weights magnify rounding at single positions; a wrong mask or position shifts the mean by more than 2.
    assert (logits.float() - fresh_logits(target(), HEADS, CANVASES)).abs().mean() < 0.5
    strategy = Strategy(Static(), FreeDave(), StateEquality(), budget=4, window=2)
    result = decode(narrow, [[1, 2, 3], [4]], strategy=strategy, config=DecodeConfig(max_new_tokens=9))
    assert all(row.tokens for row in result.rows)


@pytest.mark.parametrize("device_map", ["auto", "cpu", torch.device("cpu"), {"": "cpu"}])
def test_device_maps(device_map) -> None:
    of = load(DATA / "checkpoints/sdar", dtype="float32", device_map=device_map)
    assert of.device == torch.device("cpu")
    logits, _ = of.score(CANVASES, context=of.open(HEADS, max_new_tokens=1))
    close(logits, fresh_logits(target(), HEADS, CANVASES))
    assert of.spec == target().spec


def test_weights_on_disk(tmp_path: Path) -> None:
    """What accelerate keeps elsewhere and brings in for a pass: the spread over several devices in small."""
    from accelerate import disk_offload

    of = load(DATA / "checkpoints/sdar", dtype="float32")
    disk_offload(of.model, offload_dir=str(tmp_path), execution_device=torch.device("cpu"))
    assert of.device == torch.device("cpu")
    logits, context = of.score(CANVASES, context=of.open(HEADS, max_new_tokens=1))
    close(logits, fresh_logits(target(), HEADS, CANVASES))
    close(of.score(CANVASES, context=context)[0], logits)


# The spec


def test_spec_of_the_checkpoint() -> None:
    spec = load(DATA / "checkpoints/sdar").spec
    names = (spec.name, spec.vocab_size, spec.mask_id, spec.eos_ids, spec.pad_id)
    assert names == ("sdar", 120, MASK, (118, 117), 117)
    blocks = (spec.block_length, spec.block_grid, spec.attention, spec.cache)
    assert blocks == (4, "absolute", "block_causal", "exact")
    assert spec.token_limit is None
    assert target(length=7).spec == attrs.evolve(spec, block_length=7)


def test_spec_without_generation_config_or_block_size(tmp_path: Path) -> None:
    folder = copied(tmp_path / "c", block_size=None)
    (folder / "generation_config.json").unlink()
    spec = load(folder).spec
    assert (spec.eos_ids, spec.pad_id, spec.block_length) == ((118,), 117, 4)


def test_fingerprint_tells_weights_apart_and_nothing_else(tmp_path: Path) -> None:
    mark = target().spec.fingerprint
    assert len(mark) == 16
    assert mark != target("trado").spec.fingerprint
    assert mark == load(copied(tmp_path / "a", block_size=16), dtype="bfloat16").spec.fingerprint
    assert mark != load(copied(tmp_path / "b", rope_theta=10_000)).spec.fingerprint
    sharded = copied(tmp_path / "c")
    weights = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    names = sorted(weights)
    index = {}
    for i, part in enumerate((names[:20], names[20:])):
        file = f"model-{i}.safetensors"
        save_file({n: weights[n] for n in part}, sharded / file, {"format": "pt"})
        index |= dict.fromkeys(part, file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    of = load(sharded, dtype="float32")
    assert of.spec.fingerprint == mark
    close(fresh_logits(of, HEADS, CANVASES), fresh_logits(target(), HEADS, CANVASES))


def test_config_written_by_transformers_5(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1000000}
    of = load(copied(tmp_path / "c", rope_theta=None, rope_parameters=rope), dtype="float32")
    assert of.spec.fingerprint == target().spec.fingerprint
    close(fresh_logits(of, HEADS, CANVASES), fresh_logits(target(), HEADS, CANVASES))


def test_scaled_positions_reach_the_model(tmp_path: Path) -> None:
    of = load(copied(tmp_path / "c", rope_scaling={"type": "linear", "factor": 2.0}), dtype="float32")
    assert of.model.config.rope_parameters == {"rope_type": "linear", "rope_theta": 1000000, "factor": 2.0}


def test_tied_head_may_be_absent(tmp_path: Path) -> None:
    folder = reweighted(tmp_path / "c", lambda w: {k: v for k, v in w.items() if k != "lm_head.weight"})
    with pytest.raises(CheckpointError, match=r"weights missing lm_head\.weight"):
        load(folder)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    of = load(folder)
    assert of.model.lm_head.weight is of.model.model.embed_tokens.weight


# Faulty checkpoints


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda w: {k: v for k, v in w.items() if "layers.1.mlp.up" not in k},
            r"missing model\.layers\.1\.mlp\.up_proj",
        ),
        (lambda w: {**w, "model.extra": torch.ones(3)}, r"not in the model model\.extra"),
        (
            lambda w: {**w, "model.norm.weight": torch.ones(47)},
            r"of another shape model\.norm\.weight \(\[47\] in the file, \[48\] in the model\)",
        ),
    ],
)
def test_wrong_weights(tmp_path: Path, change, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        load(reweighted(tmp_path / "c", change))


@pytest.mark.parametrize("size", [0, 5, 1000, 300_000])
def test_truncated_weights(tmp_path: Path, size: int) -> None:
    folder = copied(tmp_path / "c")
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(size)
    with pytest.raises(CheckpointError, match="model.safetensors|weights cannot be loaded"):
        load(folder)
