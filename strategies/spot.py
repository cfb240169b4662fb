"""SPOT: a learned commit order, grown into a tree of candidate states.

Source: "On the SPOT: Enhancing Speculative Decoding for Diffusion Language Models via Commit-Order
Prediction", arXiv 2610.22543. One call of the order model per pass; the noise of later steps, which the
tape tells beforehand, enters in the growth.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import torch

from spotkit import embedded
from spotkit.capabilities import Scheduled, device_of
from spotkit.crop import crop
from spotkit.errors import ConfigError, MismatchError
from spotkit.growth import grow_rows, outlooks
from spotkit.outlook import expect
from spotkit.protocols import DecodingRule, Target
from spotkit.sampler import Sampler
from spotkit.tree import rule_chain
from spotkit.types import Draft, Evidence, State, TargetSpec

from .order_model import OrderModel, inputs_of


@attrs.frozen
class Spot:
    """Drafts with an order model; exact whatever the model says."""

    model: OrderModel = attrs.field(validator=attrs.validators.instance_of(OrderModel))

    def init(self, spec: TargetSpec, *, batch_size: int) -> TargetSpec:
        made_for = self.model.config
        if spec.block_length not in made_for.block_lengths:
            raise MismatchError(
                f"block_length={spec.block_length}: this drafter serves block lengths "
                f"{', '.join(map(str, made_for.block_lengths))}; train one with `spotkit train-drafter`"
            )
        if made_for.vocab_size != spec.vocab_size:
            raise MismatchError(
                f"vocab_size={spec.vocab_size}: this drafter was made for a target with {made_for.vocab_size} ids"
            )
        if made_for.target and spec.fingerprint and made_for.target != spec.fingerprint:
            raise MismatchError(
                f"fingerprint={spec.fingerprint}: this drafter was made for target {made_for.target}; "
                "train one with `spotkit train-drafter`"
            )
        return spec

    def propose(
        self,
        state: State,
        *,
        evidence: Evidence,
        rule: DecodingRule,
        sampler: Sampler,
        budget: int,
        carry: TargetSpec,
    ) -> tuple[Draft | None, TargetSpec]:
        if not isinstance(rule, Scheduled):
            chain = rule_chain(state, evidence=evidence, rule=rule, sampler=sampler, spec=carry, depth=budget - 1)
            return chain, carry
        whole, blocks = state, self.model.config.window(state.block_length)
        piece = crop(whole, evidence, blocks=blocks, spec=carry)
        state, evidence = piece.state, piece.evidence
        seen = expect(state, evidence=evidence, rule=rule, sampler=sampler, depth=budget)
        answer = self.model(inputs_of(state, evidence=evidence, seen=seen))
        depth = budget if seen.tokens.shape[1] == 1 else seen.tokens.shape[1]
        ahead = torch.arange(depth, device=state.canvas.device).log1p().view(1, -1, 1)
        scores = self.model.scale * seen.log_odds + answer.residual.unsqueeze(1)
        held = (answer.held[..., 0].unsqueeze(1) + answer.held[..., 1].unsqueeze(1) * ahead).sigmoid()
        views = outlooks(
            seen.tokens.expand(-1, depth, -1), scores.expand(-1, depth, -1), held, evidence.known, answer.shifts
        )
        draft = grow_rows(state, views, rule=rule, count=budget - 1, eos_ids=carry.eos_ids)
        return None if draft is None else piece.spread_back(draft, whole), carry


def spot(*, target: Target | None = None, drafter: str | Path | None = None) -> Spot:
    """The SPOT drafter from a folder written by `spotkit train-drafter`.

    Args:
        target: the target it will serve; for the embedded model the drafter may be left out.
        drafter: folder with `drafter.json` and `drafter.safetensors`.

    Raises:
        ConfigError: no drafter given, and the target is not the embedded model.
        CheckpointError: the folder cannot be read.
    """
    if drafter is not None and not isinstance(drafter, (str, Path)):
        raise ConfigError(f"drafter={drafter!r}: give the folder that `spotkit train-drafter` wrote")
    model = OrderModel.from_pretrained(embedded.drafter_path() if drafter is None else drafter)
    if drafter is None and target is not None and target.spec.fingerprint != model.config.target:
        raise ConfigError(
            "drafter=None: SPOT needs a drafter trained for this target; make one with "
            "`spotkit train-drafter`, or use confidence_tree, which needs none"
        )
    return Spot(model.to(device_of(target)))
