"""How to decode (strategy) and what to decode (configuration): immutable, checked when built."""

from __future__ import annotations

import secrets
from typing import Literal

import attrs

from spotkit.errors import ConfigError
from spotkit.fields import instance, positive
from spotkit.logprobs import Sampling
from spotkit.protocols import AcceptanceRule, DecodingRule, Drafter
from spotkit.tape import Tape
from spotkit.types import Guarantee


@attrs.frozen
class Strategy:
    """How a target is decoded: rule, drafter and acceptance rule.

    Attributes:
        rule: the decoding rule, which alone decides the text.
        drafter: proposes states; changes only the number of passes.
        acceptance: decides which proposals are kept.
        budget: states scored per row and pass, the current one included.
        window: blocks per canvas. More than one lets speculation cross block boundaries, at the price of
            as many times the positions per state. Targets with full attention always see all blocks,
            and those with an approximate cache see one.
    """

    rule: DecodingRule
    drafter: Drafter
    acceptance: AcceptanceRule
    budget: int = attrs.field(default=8, validator=positive)
    window: int = attrs.field(default=1, validator=positive)

    def __attrs_post_init__(self) -> None:
        for name, kind in (("rule", DecodingRule), ("drafter", Drafter), ("acceptance", AcceptanceRule)):
            part = getattr(self, name)
            if isinstance(part, type) or not isinstance(part, kind):
                raise ConfigError(f"{name}={part!r}: give an instance that follows the {kind.__name__} protocol")


def _count(_: object, field: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise ConfigError(f"{field.name}={value!r}: give the number of tokens to write, from 1 to 2**31 - 1")


@attrs.frozen
class DecodeConfig:
    """What to decode.

    Attributes:
        max_new_tokens: at most so many tokens are returned per row.
        sampling: temperature, top-k and top-p.
        seed: seed of the tape; None draws a fresh one, which the result records.
        keyed_by: see `Tape`.
        finish_block: decode the block that holds the end token to its end, as the official
            block-diffusion generators do; the returned text is the same.
        guarantee: refuse to decode with parts that cannot promise this.
    """

    max_new_tokens: int = attrs.field(default=256, validator=_count)
    sampling: Sampling = attrs.field(factory=Sampling, validator=instance(Sampling))
    seed: int | None = 0
    keyed_by: Literal["step", "position"] = "step"
    finish_block: bool = attrs.field(default=False, validator=instance(bool))
    guarantee: Guarantee | None = attrs.field(default=None, validator=instance(Guarantee, type(None)))

    def __attrs_post_init__(self) -> None:
        self.tape()

    def seeded(self) -> DecodeConfig:
        """The same, with a fresh seed if it has none."""
        return self if self.seed is not None else attrs.evolve(self, seed=secrets.randbits(62))

    def tape(self) -> Tape:
        """The tape of the decode (that of seed 0 as long as there is no seed)."""
        return Tape(seed=0 if self.seed is None else self.seed, keyed_by=self.keyed_by)


def guarantee_of(strategy: Strategy) -> Guarantee:
    """What a decode with this strategy promises, relative to the plain decoder on the same target."""
    return strategy.acceptance.guarantee
