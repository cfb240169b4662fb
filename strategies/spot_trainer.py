"""How SPOT's order model is trained: next-commit cross-entropy along the target's own trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from spotkit.outlook import expect
from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.types import Evidence, State, TargetSpec

from .order_model import OrderConfig, OrderInputs, OrderModel, OrderScores, inputs_of


@attrs.frozen(eq=False)
class _Path:
    """The next `D` commits of a batch of examples `[E, D]`, and who competed for each `[E, D, N]`."""

    positions: Tensor
    exists: Tensor
    rivals: Tensor
    step: Tensor
    """Steps since the block began, or since the current state in the open block `[E, D]`."""


@attrs.frozen
class SpotTrainer:
    """Trains order models.

    Attributes:
        depth: steps ahead that an example teaches.
        discount: weight of each further step, as it is reached less often.
        held_weight: weight of the loss that tells whether the stale token stands.
        seed: of the fresh weights.
    """

    depth: int = 12
    discount: float = 0.9
    held_weight: float = 0.3
    seed: int = 0

    @property
    def reads(self) -> str:
        """The format of the examples."""
        return f"order-inputs-2/depth={self.depth}"

    def inputs(self, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler) -> dict[str, Tensor]:
        """What the order model reads, and the expected tokens and log-odds of later steps `[B, D, N]`."""
        seen = expect(state, evidence=evidence, rule=rule, sampler=sampler, depth=self.depth)
        read = inputs_of(state, evidence=evidence, seen=seen)
        return {
            "top": read.top.half(),
            "first": read.first,
            "flags": read.flags,
            "odds": seen.log_odds.masked_fill(~evidence.known.unsqueeze(1), 0.0).float(),
            "tokens": seen.tokens.int(),
            "known": evidence.known,
        }

    def model(self, spec: TargetSpec, *, canvases: tuple[tuple[int, int], ...]) -> OrderModel:
        """A fresh order model; the global generator is left as it was."""
        lengths, windows = zip(*canvases, strict=True)
        config = OrderConfig(lengths, windows, vocab_size=spec.vocab_size, target=spec.fingerprint)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return OrderModel(config)

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, block_length: int, rng: torch.Generator) -> Tensor:
        """Discounted Plackett-Luce loss of the next commits, plus the held-token loss (nats).

        Canvases are cut to a random number of blocks, so that one model serves every window.
        """
        blocks = batch["time"].shape[-1] // block_length
        batch = _first(batch, block_length * (1 + int(torch.randint(blocks, (1,), generator=rng))))
        path, answer, logits = self._logits(model, batch, block_length)
        weights = path.exists * self.discount ** torch.arange(path.exists.shape[1], device=path.exists.device)
        order = nn.functional.cross_entropy(logits.flatten(0, 1), path.positions.flatten(), reduction="none")
        held, stands = self._held(answer, batch, path)
        held_loss = nn.functional.binary_cross_entropy_with_logits(held, stands.float(), reduction="none")
        each = order.view_as(weights) + self.held_weight * held_loss
        return (each * weights).sum() / weights.sum()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: dict[str, Tensor], *, block_length: int) -> dict[str, Tensor]:
        """Next-commit hits of the model and of the stale confidence, at the next step and over eight."""
        path, _, logits = self._logits(model, batch, block_length)
        stale = _take(batch["odds"], path.step).masked_fill(~path.rivals, -torch.inf)
        answers = {}
        for name, scores in (("model", logits), ("stale_confidence", stale)):
            hit = (scores.argmax(-1) == path.positions) & path.exists
            for span, last in (("next", 1), ("next8", 8)):
                answers[f"{name}/{span}"] = hit[:, :last].sum()
                answers[f"{name}/{span}/count"] = path.exists[:, :last].sum()
            first4 = scores[:, 0].topk(min(4, scores.shape[-1]), dim=-1).indices
            answers[f"{name}/top4"] = ((first4 == path.positions[:, :1]).any(-1) & path.exists[:, 0]).sum()
            answers[f"{name}/top4/count"] = path.exists[:, 0].sum()
        return answers

    def save(self, model: nn.Module, path: Path, *, about: dict[str, Any]) -> None:
        """Writes the drafter's folder."""
        assert isinstance(model, OrderModel)
        model.save_pretrained(path, about=about)

    def _logits(
        self, model: nn.Module, batch: dict[str, Tensor], block_length: int
    ) -> tuple[_Path, OrderScores, Tensor]:
        """The score of every rival at each of the next commits `[E, D, N]`, the true history given."""
        assert isinstance(model, OrderModel)
        path = self._path(batch, block_length)
        answer = model(
            OrderInputs(
                top=batch["top"].float(),
                first=batch["first"],
                log_odds=batch["odds"][:, 0],
                flags=batch["flags"],
                block_length=block_length,
            )
        )
        gathered = answer.shifts.gather(1, path.positions.unsqueeze(-1).expand(-1, -1, answer.shifts.shape[-1]))
        gathered = gathered * path.exists.unsqueeze(-1)
        before = gathered.cumsum(1) - gathered
        scores = model.scale * _take(batch["odds"], path.step) + answer.residual.unsqueeze(1) + before
        return path, answer, scores.masked_fill(~path.rivals, -1e9)

    def _path(self, batch: dict[str, Tensor], block_length: int) -> _Path:
        time = batch["time"].long()
        ordered = time.sort(dim=-1, stable=True)
        positions, times = ordered.indices[:, : self.depth], ordered.values[:, : self.depth]
        steps = torch.arange(positions.shape[1], device=time.device)
        block = torch.arange(time.shape[1], device=time.device) // block_length
        home = positions // block_length
        free = batch["flags"][..., 0] | batch["flags"][..., 1]
        rivals = (time.unsqueeze(1) >= steps.view(1, -1, 1)) & (block == home.unsqueeze(-1)) & free.unsqueeze(1)
        known = batch["known"].gather(1, positions)
        exists = ((times == steps) & known).long().cumprod(1).bool()
        opens = (home != home.roll(1, 1)).long()
        opens[:, 0] = 1
        begun = (opens * steps).cummax(1).values
        return _Path(positions, exists, rivals | ~exists.unsqueeze(-1), steps - begun)

    def _held(self, answer: OrderScores, batch: dict[str, Tensor], path: _Path) -> tuple[Tensor, Tensor]:
        at = path.positions.unsqueeze(-1).expand(-1, -1, 2)
        level, slope = answer.held.gather(1, at).unbind(-1)
        stale = _take(batch["tokens"], path.step).gather(-1, path.positions.unsqueeze(-1)).squeeze(-1)
        return level + slope * path.step.log1p(), stale == batch["final"].gather(1, path.positions)


def _first(batch: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """The examples with their canvases cut to the first `width` positions."""
    axis = {"top": 1, "first": 1, "flags": 1, "known": 1, "time": 1, "final": 1, "odds": 2, "tokens": 2}
    return {name: value.narrow(axis[name], 0, width) for name, value in batch.items()}


def _take(values: Tensor, step: Tensor) -> Tensor:
    """`values` `[E, D', N]` at the given steps `[E, D]` (the last one beyond): `[E, D, N]`."""
    at = step.clamp(max=values.shape[1] - 1).unsqueeze(-1).expand(-1, -1, values.shape[-1])
    return values.gather(1, at)
