"""Self-speculative decoding (SSD): a chain of the most confident positions, one more per state, training-free.

Source: "Self Speculative Decoding for Diffusion Large Language Models", arXiv 2510.04147, the greedy linear tree.
"""

from __future__ import annotations

import attrs

from spotkit.capabilities import Confident
from spotkit.fields import positive
from spotkit.protocols import DecodingRule
from spotkit.rules import Static
from spotkit.sampler import Sampler
from spotkit.tree import rule_chain
from spotkit.types import Draft, Evidence, State, TargetSpec


@attrs.frozen
class SelfSpeculative:
    """Drafts states that have the first, the first two, … of the most confident positions filled.

    It is made for decoders that commit one position per step; where a rule commits several, only the states that it
    can reach are accepted.

    Attributes:
        depth: positions drafted per pass (the source finds 3 to 5 best).
    """

    depth: int = attrs.field(default=4, validator=positive)

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
        kind = rule.confidence if isinstance(rule, Confident) else "raw"
        depth = min(self.depth, budget - 1)
        single = Static(confidence=kind)
        return rule_chain(state, evidence=evidence, rule=single, sampler=sampler, spec=carry, depth=depth), carry
