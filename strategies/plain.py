"""Plain decoding: nothing is drafted, every step costs a pass."""

from __future__ import annotations

import attrs

from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.types import Evidence, State, TargetSpec


@attrs.frozen
class Plain:
    """The drafter that proposes nothing."""

    def init(self, spec: TargetSpec, *, batch_size: int) -> None:
        return None

    def propose(
        self, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler, budget: int, carry: None
    ) -> tuple[None, None]:
        return None, None
