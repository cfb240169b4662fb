"""Training drafters on a target's own trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.types import Evidence, State, TargetSpec


@runtime_checkable
class Trainer(Protocol):
    """How one kind of drafter is trained.

    Registered under the entry-point group `spotkit.trainers` as a class or function that takes `seed`.
    """

    @property
    def reads(self) -> str:
        """Names what `inputs` depends on: examples collected under another name are not used again."""
        ...

    def inputs(self, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler) -> dict[str, Tensor]:
        """What the drafter reads at a pass, one leading index per row `[B, ...]`."""
        ...

    def model(self, spec: TargetSpec, *, canvases: tuple[tuple[int, int], ...]) -> nn.Module:
        """A fresh model for canvases of (block length, most blocks); called before anything is collected.

        Raises:
            ConfigError: canvases that such a model cannot serve.
        """
        ...

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, block_length: int, rng: torch.Generator) -> Tensor:
        """Mean loss (nats) over a batch of examples; `rng` serves augmentation."""
        ...

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor], *, block_length: int) -> dict[str, Tensor]:
        """Named hits and counts, summed over a batch; `name` and `name/count` make an accuracy."""
        ...

    def save(self, model: nn.Module, path: Path, *, about: dict[str, Any]) -> None:
        """Writes the drafter's folder."""
        ...
