from __future__ import annotations

import json

import attrs
import pytest
import torch
from safetensors.torch import load_file

from spotkit.errors import ConfigError
from spotkit.strategies.order_model import OrderConfig, OrderModel
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
    def model(self, spec: TargetSpec, *, block_lengths: tuple[int, ...]) -> OrderModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return OrderModel(
                OrderConfig(block_lengths, spec.vocab_size, spec.fingerprint, width=16, layers=1, heads=2)
            )


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
