"""The confidence tree: best-first growth of merged states on stale confidence, training-free."""

from __future__ import annotations

import attrs

from spotkit.capabilities import Scheduled
from spotkit.growth import grow_rows, outlooks
from spotkit.outlook import expect
from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.tree import rule_chain
from spotkit.types import Draft, Evidence, State, TargetSpec

SHARPNESS = 2.0
"""Factor on the log-odds of the stale confidence, as Plackett-Luce scores of the commit order."""


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
        return grow_rows(state, views, rule=rule, count=budget - 1, eos_ids=carry.eos_ids), carry
