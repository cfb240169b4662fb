"""Training drafters on a target's own trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from spotkit.protocols import DecodingRule, Target
from spotkit.sampler import Sampler
from spotkit.types import Evidence, State, TargetSpec

if TYPE_CHECKING:
    from spotkit.training.collect import Recipe


class Reader(Protocol):
    """What is written down of a trajectory."""

    def inputs(self, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler) -> dict[str, Tensor]:
        """What the drafter reads at a pass, one leading index per row `[B, ...]`."""
        ...


@runtime_checkable
class Trainer(Reader, Protocol):
    """How one kind of drafter is trained.

    Registered under the entry-point group `spotkit.trainers` as a class or function that takes `seed`.
    """

    @property
    def reads(self) -> str:
        """Names what `inputs` depends on: examples collected under another name are not used again."""
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


@runtime_checkable
class Calibrator(Protocol):
    """How one kind of drafter without weights is fitted to a target.

    Registered under the entry-point group `spotkit.calibrators` as a class or function that takes `size` and `depth`.
    """

    def calibrate(self, target: Target, prompts: Sequence[Sequence[int]], *, recipe: Recipe) -> Any:
        """What is learned of a target at its block length, from its trajectories on `prompts`."""
        ...

    def save(self, made: Mapping[int, Any], path: Path, *, target: TargetSpec, about: Mapping[str, Any]) -> None:
        """Writes what was made for each block length into the folder `path`."""
        ...
