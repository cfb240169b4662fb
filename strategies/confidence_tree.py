"""The confidence tree: best-first growth of merged states on stale confidence, training-free."""

from __future__ import annotations

import attrs
import torch

from spotkit.capabilities import Scheduled
from spotkit.outlook import expect
from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.tree import Growth, Outlook, materialise, rule_chain
from spotkit.types import Draft, Evidence, State, TargetSpec

SHARPNESS = 2.0
"""Factor on the log-odds of the stale confidence, as Plackett-Luce scores of the commit order."""


def outlooks(
    tokens: torch.Tensor,
    scores: torch.Tensor,
    held: torch.Tensor,
    known: torch.Tensor,
    shifts: torch.Tensor | None = None,
) -> list[Outlook]:
    """One outlook per row, copied to the host; `[B, D, N]` each, `known` `[B, N]`, `shifts` `[B, N, N]`."""
    arrays = [t.cpu().numpy() for t in (tokens, scores.float(), held.float(), known)]
    views = [Outlook(*fields) for fields in zip(*arrays, strict=True)]
    if shifts is None:
        return views
    pairs = shifts.float().cpu().numpy()
    return [attrs.evolve(view, shifts=pair) for view, pair in zip(views, pairs, strict=True)]


def grow_rows(state: State, views: list[Outlook], *, rule: Scheduled, count: int) -> Draft | None:
    """Grows a tree of at most `count` candidates for every row."""
    length = state.block_length
    active = state.active.any(-1).tolist()
    free = (~state.committed & state.exists).cpu().numpy()
    rows = []
    for row, view in enumerate(views):
        first, begun = int(state.open_block[row]), int(state.step[row])

        def quota(block: int, step: int, first: int = first, begun: int = begun) -> int:
            return rule.quota(step + (begun if block == first else 0), block_length=length)

        growth = Growth(view, quota, rule.by_confidence, length, free[row])
        rows.append(growth.grow(count) if active[row] else [])
    return materialise(state, rows)


@attrs.frozen
class ConfidenceTree:
    """Drafts the states most likely to come if positions commit in the order of their stale confidence.

    For rules whose number of commits is not fixed (threshold) it drafts the rule's own chain.
    """

    def init(self, spec: TargetSpec, *, batch_size: int) -> TargetSpec:
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
        seen = expect(state, evidence=evidence, rule=rule, sampler=sampler, depth=budget)
        views = outlooks(seen.tokens, SHARPNESS * seen.log_odds, seen.logprob.exp(), evidence.known)
        return grow_rows(state, views, rule=rule, count=budget - 1), carry
