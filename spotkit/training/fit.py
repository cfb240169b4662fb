"""Fitting a drafter's model to collected trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import torch
from torch import Tensor, nn

from spotkit.errors import ConfigError
from spotkit.fields import positive, seed
from spotkit.training import Trainer
from spotkit.training.checkpoint import resume_training, save_training

Report = Callable[[int, float], None]


@attrs.frozen(eq=False)
class Examples:
    """Examples of one block length, all of one canvas width."""

    block_length: int
    tensors: dict[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def take(self, index: Tensor) -> dict[str, Tensor]:
        """The examples at `index` `[E]`."""
        return {name: value[index] for name, value in self.tensors.items()}


def _rate(_: object, field: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ConfigError(f"{field.name}={value!r}: give a number between 0 and 1, both excluded")


@attrs.frozen
class FitConfig:
    """How long and how fast to fit.

    Attributes:
        steps: optimizer steps.
        batch: examples per step.
        rate: peak learning rate of AdamW; 2% of the steps warm up, then a half cosine to zero.
        seed: order of the examples.
        save_every: steps between checkpoints.
    """

    steps: int = attrs.field(default=4000, validator=positive)
    batch: int = attrs.field(default=96, validator=positive)
    rate: float = attrs.field(default=1.5e-3, validator=_rate)
    seed: int = attrs.field(default=0, validator=seed)
    save_every: int = attrs.field(default=250, validator=positive)


def fit(
    model: nn.Module,
    sets: Sequence[Examples],
    *,
    trainer: Trainer,
    config: FitConfig,
    state: Path,
    report: Report = lambda step, loss: None,
) -> None:
    """Fits `model` in place; a run that was interrupted goes on from the file `state`.

    Every step draws its examples from one of `sets`, chosen in proportion to their sizes.
    """
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.rate, betas=(0.9, 0.98))
    sizes = torch.tensor([len(s) for s in sets], dtype=torch.float)
    model.train()
    for step in range(resume_training(state, model, [optimizer]), config.steps):
        rng = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        chosen = sets[int(torch.multinomial(sizes, 1, generator=rng))]
        index = torch.randint(len(chosen), (config.batch,), generator=rng)
        warm = (step + 1) / max(1.0, 0.02 * config.steps)
        for group in optimizer.param_groups:
            group["lr"] = config.rate * min(warm, 0.5 * (1 + math.cos(math.pi * step / config.steps)))
        loss = trainer.loss(model, chosen.take(index), block_length=chosen.block_length, rng=rng)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step + 1, loss.item())
        if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
            save_training(state, model, [optimizer], step=step + 1)
    model.eval()


def evaluate(model: nn.Module, examples: Examples, *, trainer: Trainer, batch: int = 512) -> dict[str, float]:
    """Accuracies over all examples, by the trainer's names."""
    sums: dict[str, float] = {}
    for begin in range(0, len(examples), batch):
        index = torch.arange(begin, min(begin + batch, len(examples)))
        found = trainer.evaluate(model, examples.take(index), block_length=examples.block_length)
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    names = [n for n in sums if not n.endswith("/count")]
    return {n: sums[n] / max(1.0, sums[f"{n}/count"]) for n in names}
