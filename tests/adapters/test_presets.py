"""The official rules of every family, against the parameters of official runs and the card in the docs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import attrs
import pytest

from spotkit.cli.inspect import rule_text, sampling_text
from spotkit.errors import CheckpointError
from spotkit.loading import load
from spotkit.logprobs import Sampling
from spotkit.loop import decode
from spotkit.presets import default_preset, presets_of
from spotkit.rules import Ordered, Sequential, Static, Threshold
from spotkit.testing.official import read

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests/data/conformance"
CARD = ROOT / "docs/models.md"
FAMILIES = {
    "sdar": ("exact",),
    "llada": ("none", "prefix", "dual"),
    "llada_moe": ("none", "prefix", "dual"),
    "llada2": ("exact",),
    "dream": ("none", "prefix", "dual"),
    "fast_dllm_v2": ("exact", "block"),
}
MASKS = {"llada": 127, "llada_moe": 139, "llada2": 131, "dream": 129, "fast_dllm_v2": 123}
KINDS = [(family, cache) for family, caches in FAMILIES.items() for cache in caches]


def target_of(family: str, cache: str):
    return load(DATA / "checkpoints" / family, cache=cache, mask_id=MASKS.get(family))


def shape(rule: object) -> object:
    """What a rule does, but for numbers and for the confidence, which at temperature 0 is always the raw one."""
    if isinstance(rule, Ordered):
        return attrs.evolve(rule, rule=shape(rule.rule), span=None)
    if isinstance(rule, Sequential):
        return Sequential()
    changes = {"steps_per_block": None, "confidence": "raw"}
    if isinstance(rule, Threshold):
        changes |= {"threshold": 0.5}
    return attrs.evolve(rule, **changes)


@pytest.mark.parametrize("family", ["sdar", "llada", "llada_moe", "llada2", "dream", "fast_dllm_v2"])
def test_presets_do_what_the_official_runs_did(family: str) -> None:
    """Every official run at temperature 0 is that of a preset of its name, up to the numbers given to it."""
    cases = json.loads((DATA / f"cases/{family}.json").read_text())["cases"]
    met = set()
    for case in cases:
        reading = read(case)
        known = presets_of(target_of(family, reading.cache or "exact"))
        name = "threshold" if family.startswith("llada") and case["threshold"] is not None else case["rule"]
        assert shape(known[name].rule) == shape(reading.rule), name
        met.add(name)
    assert default_preset(target_of(family, FAMILIES[family][0])).rule is not None
    assert next(iter(known)) in met or family == "dream"


@pytest.mark.parametrize(("family", "cache"), KINDS)
def test_a_target_decodes_with_no_further_words(family: str, cache: str) -> None:
    target = target_of(family, cache)
    config = default_preset(target).config
    result = decode(target, [[5, 6, 7, 8, 9]], config=attrs.evolve(config, max_new_tokens=40))
    assert result.cache == cache
    assert 0 < len(result.rows[0].tokens) <= 40
    if family == "dream" and cache == "none":
        assert {step.block for step in result.rows[0].log} == {5}


def rows_of(folder: Path, family: str, cache: str) -> list[str]:
    """The card's rows for a target."""
    target = load(folder, cache=cache, mask_id=MASKS.get(family))
    length = "the answer" if target.spec.block_grid == "answer" else target.spec.block_length
    return [
        f"| {family} | {cache} | {length} | `{name}` | `{rule_text(preset.rule)}` | "
        f"{sampling_text(preset.config.sampling)} | {preset.config.max_new_tokens} | {preset.source} |"
        for name, preset in presets_of(target).items()
    ]


@pytest.mark.parametrize(("family", "cache"), KINDS)
def test_the_card_says_what_the_adapters_do(family: str, cache: str, tmp_path: Path) -> None:
    folder = tmp_path / family
    shutil.copytree(DATA / "checkpoints" / family, folder)
    lines = CARD.read_text().splitlines()
    mine = [line for line in lines if line.startswith(f"| {family} | {cache} |")]
    assert mine == rows_of(folder, family, cache)


def written(folder: Path, entry: object) -> Path:
    shutil.copytree(DATA / "checkpoints/sdar", folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"spotkit": entry}))
    return folder


def test_a_checkpoint_may_prefer_a_preset(tmp_path: Path) -> None:
    entry = {"preset": "low_confidence_static", "temperature": 0, "max_new_tokens": 3}
    target = load(written(tmp_path / "a", entry))
    first = default_preset(target)
    assert first.rule == Static(confidence="filtered")
    assert (first.config.sampling, first.config.max_new_tokens) == (Sampling(0.0), 3)
    assert list(presets_of(target)) == ["low_confidence_static", "low_confidence_dynamic", "sequential"]


def test_families_told_by_name(tmp_path: Path) -> None:
    shutil.copytree(DATA / "checkpoints/sdar", tmp_path / "TraDo-4B-Instruct")
    assert default_preset(load(tmp_path / "TraDo-4B-Instruct")).rule.threshold == 0.9
    shutil.copytree(DATA / "checkpoints/dream", tmp_path / "DiffuCoder-7B")
    assert default_preset(load(tmp_path / "DiffuCoder-7B", mask_id=129)).config.sampling.temperature == 0.3


@pytest.mark.parametrize(
    "entry",
    [
        5,
        "low_confidence_static",
        {"preset": "static"},
        {"preset": 5},
        {"temperature": -1},
        {"temperature": "hot"},
        {"max_new_tokens": 0},
        {"rule": "sequential"},
    ],
)
def test_a_preference_that_there_is_not(tmp_path: Path, entry: object) -> None:
    with pytest.raises(CheckpointError, match="config.json has spotkit="):
        load(written(tmp_path / "a", entry))
