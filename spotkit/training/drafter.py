"""From a target and prompts to a trained drafter on disk: collect, fit, evaluate, save.

Everything that takes long is kept in `OUT/work` under names that say what it was made from, so that the same
call goes on where it stopped, and a call with other settings never reads what does not belong to it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn

from spotkit.errors import ConfigError
from spotkit.fields import instance, positive, seed
from spotkit.logprobs import Sampling
from spotkit.protocols import DecodingRule, Target
from spotkit.rules import Static
from spotkit.settings import DecodeConfig
from spotkit.training import Trainer
from spotkit.training.collect import Recipe, collect, read_shard
from spotkit.training.digest import digest
from spotkit.training.fit import Examples, FitConfig, evaluate, fit

Prompt = tuple[int, ...]


def _share(_: object, field: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ConfigError(f"{field.name}={value!r}: give a share between 0 and 1, both excluded")


def _lengths(_: object, field: attrs.Attribute[tuple[int, ...]], value: tuple[int, ...]) -> None:
    if not value or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in value):
        raise ConfigError(f"{field.name}={value!r}: give one or more integers of at least 1")


def _rule(_: object, field: attrs.Attribute[DecodingRule], value: object) -> None:
    if isinstance(value, type) or not isinstance(value, DecodingRule):
        raise ConfigError(f"{field.name}={value!r}: give an instance that follows the DecodingRule protocol")


def _distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _integers(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(values)


@attrs.frozen
class DrafterConfig:
    """What a drafter is trained on, and for how long.

    Attributes:
        block_lengths: block lengths the drafter will serve.
        windows: most blocks per canvas, one for all block lengths or one for each.
        temperatures: of the trajectories; every block length is met with each of them.
        rule: the rule whose order is learned.
        max_new_tokens: length of a trajectory.
        held_out: share of the prompts that are kept for the evaluation.
        examples: at most so many examples per block length and temperature are kept in memory.
        prompts_per_kind: at most so many training prompts are decoded per block length and temperature, and
            different ones for each as far as they go; None decodes all prompts with each.
        rows: prompts decoded together.
        seed: of the split, the noise of the trajectories and the choice of the examples.
        fit: steps, batch, learning rate and seed of the fit.
    """

    block_lengths: tuple[int, ...] = attrs.field(converter=_distinct, validator=_lengths)
    windows: tuple[int, ...] = attrs.field(default=(2,), converter=_integers, validator=_lengths)
    temperatures: tuple[float, ...] = attrs.field(default=(0.0, 1.0), converter=_distinct)
    rule: DecodingRule = attrs.field(factory=Static, validator=_rule)
    max_new_tokens: int = attrs.field(default=256, validator=positive)
    held_out: float = attrs.field(default=0.1, validator=_share)
    examples: int = attrs.field(default=20_000, validator=positive)
    prompts_per_kind: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    rows: int = attrs.field(default=16, validator=positive)
    seed: int = attrs.field(default=0, validator=seed)
    fit: FitConfig = attrs.field(factory=FitConfig, validator=instance(FitConfig))

    def __attrs_post_init__(self) -> None:
        if len(self.windows) not in (1, len(self.block_lengths)):
            raise ConfigError(
                f"windows={self.windows}: give one, or as many as there are block lengths ({len(self.block_lengths)})"
            )
        if not self.temperatures:
            raise ConfigError("temperatures=(): give at least one")
        for temperature in self.temperatures:
            Sampling(temperature=temperature)

    @property
    def canvases(self) -> tuple[tuple[int, int], ...]:
        """Every block length with its window."""
        windows = self.windows if len(self.windows) > 1 else self.windows * len(self.block_lengths)
        return tuple(zip(self.block_lengths, windows, strict=True))


@attrs.frozen
class Kind:
    """One kind of trajectories."""

    block_length: int
    window: int
    temperature: float

    @property
    def label(self) -> str:
        """Names the kind for people and for folders."""
        return f"block{self.block_length}-window{self.window}-T{self.temperature:g}"


@attrs.frozen
class Progress:
    """How far the training is: shards collected, or steps fitted with the loss of the last one."""

    stage: Literal["collect", "fit"]
    done: int
    total: int
    label: str = ""
    loss: float | None = None


@attrs.frozen
class Accuracy:
    """Held-out accuracies of one kind, by the trainer's names, over `examples` passes."""

    kind: Kind
    examples: int
    values: dict[str, float]


@attrs.frozen
class Trained:
    """What `train_drafter` made and measured."""

    path: Path
    prompts: int
    held_out: int
    examples: int
    accuracies: tuple[Accuracy, ...]

    @property
    def about(self) -> dict[str, Any]:
        """The same as plain values, as it is saved beside the weights."""
        return {
            "prompts": self.prompts,
            "held_out_prompts": self.held_out,
            "examples": self.examples,
            "accuracies": [attrs.asdict(a.kind) | {"examples": a.examples} | a.values for a in self.accuracies],
        }


def train_drafter(
    out: Path,
    target_at: Callable[[int], Target],
    prompts: Sequence[Sequence[int]],
    *,
    trainer: Trainer,
    config: DrafterConfig,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Trained:
    """Trains a drafter on a target's own trajectories and saves it to the folder `out`.

    Args:
        out: where the drafter goes; `out/work` holds what an interrupted run goes on from.
        target_at: gives the target at a block length.
        prompts: token ids of the prompts.
        trainer: the kind of drafter.
        config: what is trained on, and for how long.
        on_progress: is told about every shard and every step.

    Raises:
        ConfigError: too few prompts for the split, or no trajectory with two passes.
    """
    training, held_out = split(prompts, share=config.held_out, seed=config.seed)
    job = _Job(out / "work", training, held_out, trainer, config, on_progress)
    model, parts = job.collect(target_at)
    sets = [job.examples(part) for part in parts if not part.held_out]
    tests = [(part.kind, job.examples(part)) for part in parts if part.held_out]
    fit(
        model,
        sets,
        trainer=trainer,
        config=config.fit,
        state=job.fit_state(parts),
        report=lambda step, loss: on_progress(Progress("fit", step, config.fit.steps, loss=loss)),
    )
    accuracies = tuple(Accuracy(kind, len(test), evaluate(model, test, trainer=trainer)) for kind, test in tests)
    trained = Trained(out, len(training), len(held_out), sum(map(len, sets)), accuracies)
    trainer.save(model, out, about=trained.about | {"steps": config.fit.steps, "seed": config.seed})
    return trained


def split(
    prompts: Sequence[Sequence[int]], *, share: float, seed: int
) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Prompts to train on and prompts held out, each at least one; a repeated prompt counts once.

    Raises:
        ConfigError: fewer than two different prompts.
    """
    different = list(dict.fromkeys(tuple(p) for p in prompts))
    if len(different) < 2:
        raise ConfigError(f"prompts: {len(different)} different; give at least 2, as some are held out")
    random.Random(seed).shuffle(different)
    count = min(max(1, round(share * len(different))), len(different) - 1)
    return tuple(different[count:]), tuple(different[:count])


@attrs.frozen
class _Part:
    """The trajectories of one kind on one side of the split."""

    kind: Kind
    held_out: bool
    folder: Path
    shards: tuple[Path, ...]


@attrs.frozen
class _Job:
    """What stays the same during one training."""

    work: Path
    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    trainer: Trainer
    config: DrafterConfig
    on_progress: Callable[[Progress], None]

    def collect(self, target_at: Callable[[int], Target]) -> tuple[nn.Module, list[_Part]]:
        """A fresh model for the target, and the trajectories of every kind on both sides."""
        config = self.config
        batches = sum(-(-len(side) // config.rows) for side in (self.dealt(0), self.held_out))
        total = len(config.block_lengths) * len(config.temperatures) * batches
        model: nn.Module | None = None
        parts: list[_Part] = []
        for block_length, window in config.canvases:
            target = target_at(block_length)
            if model is None:
                model = self.trainer.model(target.spec, canvases=config.canvases)
            for temperature, held_out in itertools.product(config.temperatures, (False, True)):
                kind = Kind(block_length, window, temperature)
                before = sum(len(part.shards) for part in parts)
                prompts = self.held_out if held_out else self.dealt(len(parts) // 2)
                parts.append(self._part(target, kind, held_out, prompts, done=before, total=total))
        assert model is not None
        return model, parts

    def dealt(self, index: int) -> tuple[Prompt, ...]:
        """The training prompts of the kind with this index."""
        count = min(self.config.prompts_per_kind or len(self.training), len(self.training))
        begin = index * count % len(self.training)
        return (self.training[begin:] + self.training[:begin])[:count]

    def _part(
        self, target: Target, kind: Kind, held_out: bool, prompts: tuple[Prompt, ...], *, done: int, total: int
    ) -> _Part:
        decoding = DecodeConfig(
            max_new_tokens=self.config.max_new_tokens,
            sampling=Sampling(temperature=kind.temperature),
            seed=2 * self.config.seed + held_out,  # held-out trajectories have noise of their own
        )
        recipe = Recipe(self.config.rule, kind.window, decoding, self.config.rows)
        made_from = digest(target.spec, recipe, self.trainer.reads, prompts)
        folder = self.work / f"{'held-out' if held_out else 'training'}-{kind.label}-{made_from}"
        shards = []
        for shard in collect(folder, target, prompts, trainer=self.trainer, recipe=recipe):
            shards.append(shard)
            self.on_progress(Progress("collect", done + len(shards), total, kind.label))
        return _Part(kind, held_out, folder, tuple(shards))

    def examples(self, part: _Part) -> Examples:
        """At most `config.examples` examples of a part, spread evenly over its shards."""
        shards = [(i, shard) for i, path in enumerate(part.shards) if (shard := read_shard(path))]
        share, rest = divmod(self.config.examples, max(len(shards), 1))
        kept: dict[str, list[Tensor]] = {}
        for place, (i, tensors) in enumerate(shards):
            count = len(next(iter(tensors.values())))
            rng = torch.Generator().manual_seed(self.config.seed * 1_000_003 + i)
            index = torch.randperm(count, generator=rng)[: share + (place < rest)].sort().values
            for name, value in tensors.items():
                kept.setdefault(name, []).append(value[index])
        if not kept:
            raise ConfigError(
                f"prompts: the trajectories of {part.kind.label} hold no second pass; "
                "give prompts with longer answers, or more max_new_tokens"
            )
        return Examples(part.kind.block_length, {name: torch.cat(values) for name, values in kept.items()})

    def fit_state(self, parts: Sequence[_Part]) -> Path:
        """Where the state of this fit is kept."""
        folders = [part.folder.name for part in parts if not part.held_out]
        fit = attrs.evolve(self.config.fit, save_every=1)  # changes nothing that is fitted
        made_from = digest(folders, self.config.examples, self.config.seed, self.trainer, fit)
        return self.work / f"fit-{made_from}.safetensors"
