"""Every family against its official code, and against itself in every layout and cache."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from spotkit.errors import CheckpointError, ConfigError
from spotkit.loading import load
from spotkit.testing.conformance import run_file

DATA = Path(__file__).parent.parent / "data" / "conformance"


@attrs.frozen
class Family:
    """A checkpoint with its mask id, its caches, the number of its official cases, and its logits' shift."""

    name: str
    mask_id: int
    caches: tuple[str, ...]
    cases: int
    shift: int = 0

    @property
    def causal(self) -> bool:
        return self.caches == ("exact",)


FAMILIES = (
    Family("llada", 127, ("none", "prefix", "dual"), 32),
    Family("llada_gqa_tied", 127, ("none", "prefix", "dual"), 31),
    Family("llada_moe", 139, ("none", "prefix", "dual"), 7),
    Family("llada2", 131, ("exact",), 25),
    Family("dream", 129, ("none", "prefix", "dual"), 36, shift=1),
    Family("fast_dllm_v2", 123, ("exact",), 32, shift=1),
)
PARTS = [pytest.param(f, c, id=f"{f.name}-{c}") for f in FAMILIES for c in f.caches]
SETTINGS = [("sdpa", "tree"), ("eager", "batch"), ("sdpa", "batch"), ("eager", "tree")]
LENGTH = 4


@functools.cache
def target(family: Family, cache: str, attention: str = "sdpa", layout: str = "tree", length: int = LENGTH):
    return load(
        DATA / "checkpoints" / family.name,
        dtype="float32",
        attn_implementation=attention,
        layout=layout,
        cache=cache,
        block_length=length,
        mask_id=family.mask_id,
    )


def ids(*shape: int, seed: int = 0, below: int = 118) -> torch.Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def close(left: torch.Tensor, right: torch.Tensor, within: float = 1e-4) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=within)


@pytest.mark.parametrize(("attention", "layout"), SETTINGS[:2])
@pytest.mark.parametrize("family", [f for f in FAMILIES if f.cases], ids=lambda f: f.name)
def test_official_cases(family, attention, layout):
    report = run_file(DATA / "cases" / f"{family.name}.json", attn_implementation=attention, layout=layout)
    assert report.ok, report.failed
    assert report.passed == family.cases


@pytest.mark.parametrize(("attention", "layout"), SETTINGS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_official_logits(family, attention, layout):
    reference = load_file(DATA / "checkpoints" / family.name / "reference_logits.safetensors")
    whole, logits = reference["ids"][0], reference["full_logits"][0]
    length = 8 if family.causal else len(whole) - 1
    cut = 8 if family.causal else 1
    of = target(family, family.caches[0], attention, layout, length)
    canvas = whole[cut:].view(1, 1, -1).expand(1, 3, -1)
    scored, context = of.score(canvas, context=of.open([whole[:cut]], max_new_tokens=len(whole) - cut))
    again, _ = of.score(canvas, context=context)
    for state in (*scored[0], *again[0]):
        close(state, logits[cut - family.shift : len(whole) - family.shift])


@pytest.mark.parametrize(("attention", "layout"), SETTINGS)
@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.name in ("llada", "llada_gqa_tied", "dream")], ids=lambda f: f.name
)
def test_official_logits_of_a_left_padded_row(family, attention, layout):
    """A short row beside a long one gets what the official code gives it behind padding."""
    reference = load_file(DATA / "checkpoints" / family.name / "reference_logits.safetensors")
    whole, real = reference["ids"][0], reference["left_pad_mask"][0].bool()
    pad, cut = int((~real).sum()), len(whole) - 6
    assert 0 < pad < cut - 1
    of = target(family, "none", attention, layout, 6)
    context = of.open([whole[:cut], whole[pad:cut]], max_new_tokens=6)
    scored, _ = of.score(whole[cut:].view(1, 1, -1).expand(2, 2, -1), context=context)
    places = slice(cut - family.shift, len(whole) - family.shift)
    for state in range(2):
        close(scored[0, state], reference["full_logits"][0, places])
        close(scored[1, state], reference["left_pad_logits"][0, places])
    assert (scored[0] - scored[1]).abs().max() > 0.1


@pytest.mark.parametrize(("attention", "layout"), SETTINGS)
def test_official_logits_of_a_block_behind_cached_ones(attention, layout):
    family = next(f for f in FAMILIES if f.name == "fast_dllm_v2")
    reference = load_file(DATA / "checkpoints" / family.name / "reference_logits.safetensors")
    whole = reference["ids"][0]
    of = target(family, "exact", attention, layout, 8)
    _, context = of.score(whole[16:].view(1, 1, -1), context=of.open([whole[:16]], max_new_tokens=8))
    scored, _ = of.score(whole[16:].view(1, 1, -1), context=context)
    close(scored[0, 0, 1:], reference["block_logits"][0, :-1])


def prompts_of(family):
    return [ids(8, seed=1), ids(4, seed=2), ids(12, seed=3)] if family.causal else [
        ids(7, seed=1), ids(2, seed=2), ids(11, seed=3)
    ]  # fmt: skip


@pytest.mark.parametrize(("attention", "layout"), SETTINGS)
@pytest.mark.parametrize(("family", "cache"), PARTS)
def test_ragged_rows_score_as_each_state_alone(family, cache, attention, layout):
    of = target(family, cache, attention, layout)
    width = LENGTH if cache in ("prefix", "dual") else 3 * LENGTH
    canvases = ids(3, 4, width, seed=5)
    prompts = prompts_of(family)
    first, context = of.score(canvases, context=of.open(prompts, max_new_tokens=12))
    again, _ = of.score(canvases, context=context)
    close(again, first)
    for row, prompt in enumerate(prompts):
        for state in range(4):
            one, _ = of.score(canvases[row, state].view(1, 1, -1), context=of.open([prompt], max_new_tokens=12))
            close(first[row, state], one[0, 0])


@pytest.mark.parametrize("layout", ["tree", "batch"])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_rows_refresh_when_their_block_is_finished(cache, layout):
    """A row at a block's start and rows in the middle of theirs share a pass, and get what each gets alone."""
    of = target(FAMILIES[1], cache, "sdpa", layout)
    prompts, canvases, block = prompts_of(FAMILIES[1]), ids(3, 2, LENGTH, seed=6), ids(3, LENGTH, seed=7)
    _, context = of.score(canvases, context=of.open(prompts, max_new_tokens=12))
    for rows in ([True, False, False], [False, True, True]):
        moved = of.extend(context, block=block, rows=torch.tensor(rows))
        logits, after = of.score(canvases, context=moved)
        close(of.score(canvases, context=after)[0], logits)
        for row, grows in enumerate(rows):
            alone = of.open([prompts[row]], max_new_tokens=12)
            if grows:
                alone = of.extend(alone, block=block[row : row + 1], rows=torch.tensor([True]))
            close(logits[row], of.score(canvases[row : row + 1], context=alone)[0][0])
    unmoved, _ = of.score(canvases, context=context)
    assert (unmoved - of.score(canvases, context=moved)[0]).abs().amax((1, 2, 3)).tolist()[1] > 0.1


def test_the_caches_are_approximations_that_differ():
    family = FAMILIES[0]
    canvas = ids(1, 1, LENGTH, seed=8)
    logits = []
    for cache in family.caches:
        of = target(family, cache)
        whole = canvas if cache != "none" else torch.cat([canvas, torch.full((1, 1, 8), family.mask_id)], -1)
        logits.append(of.score(whole, context=of.open([ids(7)], max_new_tokens=12))[0][:, :, :LENGTH])
        assert of.spec.cache == ("none" if cache == "none" else "approximate")
    none, prefix, dual = logits
    assert min((none - prefix).abs().max(), (none - dual).abs().max(), (prefix - dual).abs().max()) > 1e-3


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_cache_that_the_family_lacks_is_refused(family):
    wrong = "none" if family.causal else "exact"
    with pytest.raises(ConfigError, match=f"cache='{wrong}'"):
        load(DATA / "checkpoints" / family.name, cache=wrong, mask_id=family.mask_id)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_canvas_of_several_blocks_is_refused_with_a_refreshed_cache(cache):
    of = target(FAMILIES[0], cache)
    with pytest.raises(ConfigError, match="a canvas is one block of 4"):
        of.score(ids(1, 1, 8), context=of.open([ids(5)], max_new_tokens=8))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_every_weight_is_needed_and_none_besides(family, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(DATA / "checkpoints" / family.name, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    lost = next(name for name in sorted(weights) if ".1." in name)
    save_file({k: v for k, v in weights.items() if k != lost}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="weights (missing|of another shape)"):
        load(folder, mask_id=family.mask_id)
    save_file({**weights, "model.stray": torch.ones(2)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"not in the model model\.stray"):
        load(folder, mask_id=family.mask_id)


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("llada", {"block_type": "sequential"}, "block_type='sequential'"),
        ("llada", {"alibi": True}, "alibi=True"),
        ("llada", {"d_model": None}, "lacks d_model"),
        ("llada_moe", {"norm_topk_prob": True}, "norm_topk_prob=True"),
        ("llada_moe", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ("llada_moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size=64"),
        ("llada_moe", {"moe_layer_freq": [0, 1, 1]}, "moe_layer_freq"),
        ("llada2", {"use_bias": True}, "use_bias=True"),
        ("llada2", {"num_experts": None}, "lacks num_experts"),
        ("llada2", {"_name_or_path": "inclusionAI/LLaDA2.1-mini"}, "rewrites tokens"),
    ],
)
def test_what_the_native_class_would_not_do_is_refused(name, changes, text, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(DATA / "checkpoints" / name, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    with pytest.raises(CheckpointError, match=text):
        load(folder, mask_id=100)


def test_without_a_mask_id_in_the_checkpoint_the_familys_is_taken():
    with pytest.raises(CheckpointError, match=r"mask_token_id=156895.*as mask_id when loading"):
        load(DATA / "checkpoints" / "llada2")
