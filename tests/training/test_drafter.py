from __future__ import annotations

import json
import re

import attrs
import pytest
import torch
from safetensors.torch import load_file

from spotkit.acceptance import StateEquality
from spotkit.errors import CheckpointError, ConfigError
from spotkit.loop import decode
from spotkit.rules import Static
from spotkit.settings import DecodeConfig, Strategy
from spotkit.strategies.order_model import OrderConfig, OrderModel
from spotkit.strategies.plain import Plain
from spotkit.strategies.spot import Spot
from spotkit.strategies.spot_trainer import SpotTrainer
from spotkit.testing.targets import TableTarget
from spotkit.training import drafter as drafter_module
from spotkit.training.drafter import DrafterConfig, split, train_drafter
from spotkit.training.fit import FitConfig
from spotkit.types import TargetSpec

SPEC = TargetSpec(name="table", vocab_size=12, mask_id=11, eos_ids=(10,), pad_id=0, block_length=4, fingerprint="t")
PROMPTS = [[1 + i % 7, 2, 3 + i // 7] for i in range(12)]
CONFIG = DrafterConfig(
    block_lengths=(4, 8),
    windows=(2,),
    temperatures=(0.0, 1.0),
    max_new_tokens=9,
    held_out=0.25,
    examples=60,
    rows=4,
    fit=FitConfig(steps=6, batch=8, save_every=2),
)


@attrs.frozen
class SmallTrainer(SpotTrainer):
    def model(self, spec: TargetSpec, *, canvases: tuple[tuple[int, int], ...]) -> OrderModel:
        lengths, windows = zip(*canvases, strict=True)
        sizes = OrderConfig(
            lengths, windows, vocab_size=spec.vocab_size, target=spec.fingerprint, width=16, layers=1, heads=2
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return OrderModel(sizes)


def target_at(block_length):
    return TableTarget(attrs.evolve(SPEC, block_length=block_length), smooth=0.8)


def train(out, config=CONFIG, on_progress=lambda _: None, trainer=SmallTrainer()):
    return train_drafter(out, target_at, PROMPTS, trainer=trainer, config=config, on_progress=on_progress)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    seen = []
    return train(out, on_progress=seen.append), seen


class Stop(Exception):
    pass


def test_trains_measures_and_saves(whole):
    trained, seen = whole
    assert (trained.prompts, trained.held_out) == (9, 3)
    assert 0 < trained.examples <= 4 * CONFIG.examples
    assert {(a.kind.block_length, a.kind.temperature) for a in trained.accuracies} == {
        (4, 0.0), (4, 1.0), (8, 0.0), (8, 1.0)
    }  # fmt: skip
    for accuracy in trained.accuracies:
        assert accuracy.examples > 0
        assert {"model/next", "stale_confidence/next"} <= set(accuracy.values)
        assert all(0 <= v <= 1 for v in accuracy.values.values())
    collected = [p for p in seen if p.stage == "collect"]
    assert [p.done for p in collected] == list(range(1, collected[0].total + 1))
    assert [p.done for p in seen if p.stage == "fit"] == [1, 2, 3, 4, 5, 6]
    about = json.loads((trained.path / "drafter.json").read_text())["about"]
    assert about["accuracies"][0]["model/next"] == trained.accuracies[0].values["model/next"]
    model = OrderModel.from_pretrained(trained.path)
    assert model.config.block_lengths == (4, 8)
    assert model.config.target == "t"


@pytest.mark.parametrize(("stage", "at"), [("collect", 3), ("fit", 1), ("fit", 5)])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(tmp_path, whole, stage, at):
    def interrupt(progress):
        if (progress.stage, progress.done) == (stage, at):
            raise Stop

    with pytest.raises(Stop):
        train(tmp_path, on_progress=interrupt)
    again = []
    resumed = train(tmp_path, on_progress=again.append)
    if at == 5:
        assert [p.done for p in again if p.stage == "fit"] == [5, 6]
    assert resumed.accuracies == whole[0].accuracies
    mine, other = (load_file(run.path / "drafter.safetensors") for run in (resumed, whole[0]))
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_other_settings_never_read_what_does_not_belong_to_them(tmp_path):
    train(tmp_path, config=CONFIG)
    shards = {p: p.stat().st_mtime_ns for p in tmp_path.glob("work/*/*.safetensors")}
    seen = []
    longer = attrs.evolve(CONFIG, fit=attrs.evolve(CONFIG.fit, steps=8))
    train(tmp_path, config=longer, on_progress=seen.append)
    assert len([p for p in seen if p.stage == "fit"]) == 8
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("work/*/*.safetensors")} == shards
    train(tmp_path, config=attrs.evolve(CONFIG, max_new_tokens=8))
    assert len(list(tmp_path.glob("work/*/*.safetensors"))) == 2 * len(shards)
    deeper = len(list(tmp_path.glob("work/*/*.safetensors")))
    train(tmp_path, trainer=SmallTrainer(depth=3))
    assert len(list(tmp_path.glob("work/*/*.safetensors"))) == deeper + len(shards)


def test_the_split_is_by_prompt_and_depends_on_the_seed():
    training, held_out = split([*PROMPTS, *PROMPTS], share=0.25, seed=0)
    assert (len(training), len(held_out)) == (9, 3)
    assert not set(training) & set(held_out)
    assert split(PROMPTS, share=0.25, seed=0) == (training, held_out)
    assert split(PROMPTS, share=0.25, seed=1)[1] != held_out
    assert [len(side) for side in split(PROMPTS[:2], share=0.01, seed=0)] == [1, 1]


def test_every_block_length_has_its_window():
    assert CONFIG.canvases == ((4, 2), (8, 2))
    assert attrs.evolve(CONFIG, windows=(3, 1)).canvases == ((4, 3), (8, 1))


def test_too_few_prompts_are_refused():
    with pytest.raises(ConfigError, match="1 different; give at least 2"):
        split([[1], [1]], share=0.5, seed=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("held_out", 0.0), ("held_out", 1), ("examples", 0), ("windows", ()), ("block_lengths", (0,)),
     ("windows", (1, 2, 3)), ("temperatures", ()), ("temperatures", (-1.0,)), ("rows", 0),
     ("prompts_per_kind", 0)],
)  # fmt: skip
def test_bad_settings_are_refused(field, value):
    with pytest.raises(ConfigError, match=field.removesuffix("s")):
        attrs.evolve(CONFIG, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 2**40), ("seed", True), ("seed", "1"), ("rule", "static"), ("rule", Static),
     ("fit", None), ("fit", {"steps": 3})],
)  # fmt: skip
def test_settings_of_the_wrong_type_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"{field}={re.escape(repr(value))}"):
        attrs.evolve(CONFIG, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("rate", "x"), ("rate", 0), ("rate", 1.0), ("seed", -1), ("steps", 0), ("batch", 1.5)]
)
def test_a_fit_of_no_sense_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"{field}={value!r}"):
        FitConfig(**{field: value})


def test_canvases_too_wide_for_the_drafter_are_refused_before_anything_is_collected(tmp_path):
    seen = []
    with pytest.raises(ConfigError, match="2 blocks of 64 are 128 positions"):
        train(tmp_path, attrs.evolve(CONFIG, block_lengths=(64,)), on_progress=seen.append, trainer=SpotTrainer())
    assert seen == []


def test_held_out_answers_that_teach_nothing_are_told_before_the_fit(tmp_path):
    """Training prompts have long answers, the one held-out prompt ends at once."""
    _, held_out = split(PROMPTS, share=0.05, seed=0)
    assert len(held_out) == 1

    @attrs.frozen
    class Ends:
        spec: TargetSpec
        inner: TableTarget

        def open(self, prompts, *, max_new_tokens):
            return self.inner.open(prompts, max_new_tokens=max_new_tokens)

        def score(self, canvases, *, context):
            logits, context = self.inner.score(canvases, context=context)
            for row in range(len(logits)):
                if canvases[row, 0, : len(held_out[0])].tolist() == list(held_out[0]):
                    logits[row, ..., 10] = 50.0
            return logits, context

        def extend(self, context, *, block, rows):
            return self.inner.extend(context, block=block, rows=rows)

    seen = []
    config = attrs.evolve(CONFIG, block_lengths=(4,), held_out=0.05)
    with pytest.raises(ConfigError, match="no second pass"):
        train_drafter(
            tmp_path, lambda length: Ends(target_at(length).spec, target_at(length)), PROMPTS,
            trainer=SmallTrainer(), config=config, on_progress=seen.append,
        )  # fmt: skip
    assert {p.stage for p in seen} == {"collect"}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_fewer_examples_than_shards(tmp_path, count):
    trained = train(tmp_path, attrs.evolve(CONFIG, examples=count, rows=1))
    assert trained.examples == 4 * count
    assert [a.examples for a in trained.accuracies] == [min(count, a.examples) for a in trained.accuracies]


@pytest.mark.parametrize("pattern", ["training-*/00001.safetensors", "held-out-*/00000.safetensors", "fit-*"])
def test_a_damaged_file_of_the_work_folder_is_named(tmp_path, pattern):
    train(tmp_path)
    broken = next(iter(sorted(tmp_path.glob(f"work/{pattern}"))))
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=f"{re.escape(str(broken))}: cannot be read .* delete it"):
        train(tmp_path)
    broken.unlink()
    assert train(tmp_path).path == tmp_path


def test_a_drafter_for_bidirectional_targets_sees_the_blocks_from_the_open_one_on(tmp_path):
    """The answer has more positions than the drafter tells apart, in training and afterwards."""
    spec = attrs.evolve(SPEC, attention="full", block_grid="prompt", cache="none", eos_ids=())
    target = TableTarget(spec, smooth=0.9)
    config = attrs.evolve(CONFIG, block_lengths=(4,), windows=(3,), max_new_tokens=120)
    trained = train_drafter(
        tmp_path, lambda _: target, PROMPTS[:4], trainer=SmallTrainer(), config=config, on_progress=lambda _: None
    )
    assert {load_file(p)["time"].shape[1] for p in tmp_path.glob("work/*-*/*.safetensors")} == {12}
    model = OrderModel.from_pretrained(trained.path)
    decoding = DecodeConfig(max_new_tokens=120)
    plain, spot = (
        decode(target, PROMPTS[:3], strategy=Strategy(Static(), drafter, StateEquality(), budget=8), config=decoding)
        for drafter in (Plain(), Spot(model))
    )
    assert spot.same_text(plain)
    assert spot.stats.accepted > 0.3 * spot.stats.steps


def test_answers_of_one_step_teach_nothing(tmp_path):
    with pytest.raises(ConfigError, match="no second pass"):
        train(tmp_path, config=attrs.evolve(CONFIG, max_new_tokens=1))


def test_kinds_take_different_prompts_as_far_as_they_go(tmp_path):
    config = attrs.evolve(CONFIG, prompts_per_kind=4)
    trained = train(tmp_path, config=config)
    assert trained.prompts == 9
    folders = sorted(tmp_path.glob("work/training-*"))
    counts = [sum(len(load_file(s)["time"]) for s in folder.iterdir()) for folder in folders]
    training, _ = split(PROMPTS, share=CONFIG.held_out, seed=0)
    job = drafter_module._Job(tmp_path, training, (), SmallTrainer(), config, lambda _: None)
    dealt = [job.dealt(i) for i in range(4)]
    assert [len(d) for d in dealt] == [4] * 4
    assert len({p for d in dealt[:2] for p in d}) == 8
    assert {p for d in dealt for p in d} == set(training)
    assert len(folders) == 4
    assert all(counts)


def test_more_prompts_per_kind_than_there_are_take_all(tmp_path, whole):
    trained = train(tmp_path, config=attrs.evolve(CONFIG, prompts_per_kind=100))
    assert trained.accuracies == whole[0].accuracies
