"""Spiffy: a fixed graph of draft states, calibrated on a few trajectories of the target.

A draft state is a formula: which ranks of position (by stale confidence) are filled with which ranks of token. Equal
states are one node, whatever order leads to them. The formulas are the same in every pass; only the tokens differ.

Source: "Spiffy", arXiv 2509.18085: the graph of size D with the largest degree-1 accumulated counts, and from its
fourth version the pruning of D nodes to D* in every pass. How the scores of children are aggregated there is not
public; here it is their largest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from spotkit import embedded
from spotkit.capabilities import Confident, Scheduled
from spotkit.errors import CheckpointError, ConfigError, MismatchError
from spotkit.fields import positive
from spotkit.logprobs import temper
from spotkit.protocols import DecodingRule, Target
from spotkit.sampler import Sampler
from spotkit.tree import rule_chain
from spotkit.types import Draft, Evidence, State, TargetSpec

TOKENS = 4
"""Ranks of token that formulas tell apart."""
_FORMAT = 1

Pair = tuple[int, int]
"""Rank of the position among the open ones, and rank of the token there; both from 0."""
Formula = tuple[tuple[Pair, ...], ...]
"""The pairs that commit at the first step, at the second, …"""


@attrs.frozen(eq=False)
class Ranks:
    """Positions and tokens in the order of the stale evidence.

    Attributes:
        position: positions of the open block, the most confident first, then all others `[B, N]`.
        open: how many of them are open `[B]`.
        tokens: the best tokens of every position at every step ahead `[B, D, N, TOKENS]`; `D` is 1 if all are alike.
        logprob: their log-probs at temperature 1 `[B, D, N, TOKENS]`.
    """

    position: Tensor
    open: Tensor
    tokens: Tensor
    logprob: Tensor

    @classmethod
    def of(cls, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler, depth: int) -> Ranks:
        """The ranks that formulas refer to.

        Under noise the tokens of a step are ranked by what the noise of that step makes of them.
        """
        raw = evidence.logprobs
        count = min(TOKENS, raw.shape[-1])
        wide = raw.topk(min(8 * TOKENS, raw.shape[-1]), dim=-1)
        if sampler.sampling.greedy:
            tokens, logprob = wide.indices[..., :count].unsqueeze(1), wide.values[..., :count].unsqueeze(1)
        else:
            ahead = torch.arange(depth, device=raw.device).view(1, -1, 1)
            keys = sampler.tape.keys(
                row=state.row.view(-1, 1, 1),
                position=state.positions.unsqueeze(1),
                step=state.step.view(-1, 1, 1) + ahead,
            )
            noise = sampler.tape.gumbel(keys.unsqueeze(-1), wide.indices.unsqueeze(1), dtype=raw.dtype)
            order = (wide.values.unsqueeze(1) / sampler.sampling.divisor + noise).topk(count, dim=-1).indices
            tokens = wide.indices.unsqueeze(1).expand(-1, depth, -1, -1).gather(-1, order)
            logprob = wide.values.unsqueeze(1).expand(-1, depth, -1, -1).gather(-1, order)
        sure = logprob[:, 0, :, 0]
        if isinstance(rule, Confident) and rule.confidence != "raw" and not sampler.sampling.greedy:
            sure = temper(raw, sampler.sampling).gather(-1, tokens[:, 0, :, :1]).squeeze(-1)
        sure = sure.masked_fill(~(state.active & evidence.known), -torch.inf)
        position = sure.sort(dim=-1, descending=True, stable=True).indices
        return cls(position, (sure > -torch.inf).sum(-1), tokens, logprob)


@attrs.frozen
class Graph:
    """Formulas in the order of their worth, every one after one of its parents.

    Attributes:
        formulas: see `Formula`.
        counts: how often each was seen in the calibration.
    """

    formulas: tuple[Formula, ...]
    counts: tuple[int, ...]


@attrs.frozen
class Spiffy:
    """Drafts the states of a calibrated graph; exact whatever the graph says.

    Attributes:
        graphs: one per block length.
        target: fingerprint of the target that they were calibrated on; empty if not known.
        pruned: states kept per pass, the most probable ones; None keeps all that the budget allows.
    """

    graphs: Mapping[int, Graph]
    target: str = ""
    pruned: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))

    def init(self, spec: TargetSpec, *, batch_size: int) -> TargetSpec:
        if spec.block_length not in self.graphs:
            raise MismatchError(
                f"block_length={spec.block_length}: this graph serves block lengths "
                f"{', '.join(map(str, self.graphs))}; make one with `spotkit calibrate`"
            )
        if self.target and spec.fingerprint and self.target != spec.fingerprint:
            raise MismatchError(
                f"fingerprint={spec.fingerprint}: this graph was made for target {self.target}; make one with "
                "`spotkit calibrate`"
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
        formulas = self.graphs[carry.block_length].formulas[: budget - 1]
        if not formulas:
            return None, carry
        depth = max(map(len, formulas))
        ranks = Ranks.of(state, evidence=evidence, rule=rule, sampler=sampler, depth=depth)
        draft, local = instantiate(state, formulas, ranks)
        if self.pruned is not None and self.pruned < len(formulas):
            draft = attrs.evolve(draft, valid=draft.valid & self._kept(formulas, local, draft.valid, self.pruned))
        return draft, carry

    def _kept(self, formulas: Sequence[Formula], local: Tensor, valid: Tensor, most: int) -> Tensor:
        """The `most` best of the valid candidates `[B, K]`: geometric mean of own and best child's local score."""
        sets = [frozenset(pair for step in formula for pair in step) for formula in formulas]
        score = local.masked_fill(~valid, -torch.inf)
        child = score.clone()
        for k, parent in enumerate(sets):
            below = [i for i, other in enumerate(sets) if len(formulas[i]) == len(formulas[k]) + 1 and parent < other]
            if below:
                best = score[:, below].amax(-1)
                child[:, k] = torch.where(best > -torch.inf, best, score[:, k])
        order = (score + child).sort(dim=-1, descending=True, stable=True).indices[:, :most]
        return torch.zeros_like(valid).scatter(1, order, True)


def instantiate(state: State, formulas: Sequence[Formula], ranks: Ranks) -> tuple[Draft, Tensor]:
    """The states `[B, K]` that the formulas stand for, and the geometric mean of their pairs' probabilities (log)."""
    spread = state.spread(len(formulas))
    canvas, committed, step = spread.canvas.clone(), spread.committed.clone(), spread.step.clone()
    valid = torch.ones_like(step, dtype=torch.bool)
    local = torch.zeros(step.shape, dtype=ranks.logprob.dtype, device=step.device)
    rows = torch.arange(len(state.step), device=step.device)
    for k, formula in enumerate(formulas):
        pairs = [(d, i, j) for d, pairs in enumerate(formula) for i, j in pairs]
        valid[:, k] = (max(i for _, i, _ in pairs) < ranks.open) & (
            ranks.tokens.shape[-1] > max(j for *_, j in pairs)
        )
        for d, i, j in pairs:
            at = ranks.position[:, min(i, ranks.position.shape[1] - 1)]
            depth, rank = min(d, ranks.tokens.shape[1] - 1), min(j, ranks.tokens.shape[-1] - 1)
            canvas[rows, k, at] = ranks.tokens[rows, depth, at, rank]
            committed[rows, k, at] = True
            local[:, k] += ranks.logprob[rows, depth, at, rank] / len(pairs)
        step[:, k] += len(formula)
    moved = attrs.evolve(spread, canvas=canvas, committed=committed)
    finished = moved.open_block > state.open_block.unsqueeze(1)
    return Draft(attrs.evolve(moved, step=torch.where(finished, 0, step)), valid), local


def save(folder: Path, spiffy: Spiffy, *, about: Mapping[str, Any]) -> None:
    """Writes `spiffy.json` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    graphs = {str(length): attrs.asdict(graph) for length, graph in spiffy.graphs.items()}
    content = {"kind": "spiffy", "format": _FORMAT, "target": spiffy.target, "graphs": graphs, "about": dict(about)}
    (folder / "spiffy.json").write_text(json.dumps(content) + "\n")


def spiffy(*, target: Target | None = None, drafter: str | Path | None = None, pruned: int | None = None) -> Spiffy:
    """The Spiffy drafter from a folder written by `spotkit calibrate`.

    Args:
        target: the target it will serve; for the embedded model the drafter may be left out.
        drafter: folder with `spiffy.json`.
        pruned: see `Spiffy`.

    Raises:
        ConfigError: no drafter given, and the target is not the embedded model.
        CheckpointError: the folder cannot be read.
    """
    if drafter is not None and not isinstance(drafter, (str, Path)):
        raise ConfigError(f"drafter={drafter!r}: give the folder that `spotkit calibrate` wrote")
    made = _read(embedded.drafter_path() if drafter is None else Path(drafter), pruned)
    if drafter is None and target is not None and target.spec.fingerprint != made.target:
        raise ConfigError(
            "drafter=None: Spiffy needs a graph calibrated for this target; make one with `spotkit calibrate`, or "
            "use confidence_tree, which needs none"
        )
    return made


def _read(folder: Path, pruned: int | None) -> Spiffy:
    path = folder / "spiffy.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] != "spiffy" or content["format"] != _FORMAT:
            raise CheckpointError(f"{path}: not a Spiffy graph of format {_FORMAT}; make it anew")
        graphs = {int(length): _graph(entry) for length, entry in content["graphs"].items()}
        return Spiffy(graphs, str(content["target"]), pruned)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise CheckpointError(f"{path}: cannot be read ({error}); make it with `spotkit calibrate`") from error


def _graph(entry: Mapping[str, Any]) -> Graph:
    formulas = tuple(
        tuple(tuple((_rank(i), _rank(j)) for i, j in step) for step in formula) for formula in entry["formulas"]
    )
    if not all(formula and all(formula) for formula in formulas):
        raise ValueError("a formula without pairs")
    return Graph(formulas, tuple(map(_rank, entry["counts"])))


def _rank(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"{value!r} is no rank")
    return value
