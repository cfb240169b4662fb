"""FreeDave: a nested chain in the order of the stale confidence, training-free.

Source: "FreeDave", arXiv 2510.00294, and its repository (`generation/core.py`), with exact matching.
"""

from __future__ import annotations

import attrs

from spotkit.errors import ConfigError
from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.tree import rule_chain
from spotkit.types import Draft, Evidence, State, TargetSpec


def _depth(_: object, field: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{field.name}={value!r}: give an integer of at least 1, or None for all the budget")


@attrs.frozen
class FreeDave:
    """Drafts the states the rule would go through if the target's last answer stayed as it is.

    Attributes:
        depth: states drafted per pass; None uses the whole budget.
    """

    depth: int | None = attrs.field(default=None, validator=_depth)

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
        depth = budget - 1 if self.depth is None else min(self.depth, budget - 1)
        draft = rule_chain(state, evidence=evidence, rule=rule, sampler=sampler, spec=carry, depth=depth)
        return draft, carry
