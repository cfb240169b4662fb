"""The four protocols of spotkit: target, decoding rule, drafter, acceptance rule.

Shapes: `B` rows, `K` states per row, `N` canvas positions, `V` vocabulary. Every argument after the first
is passed by keyword. Nothing here may change an argument in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from spotkit.sampler import Sampler
from spotkit.types import Commit, Draft, Evidence, Guarantee, LogProbs, State, TargetSpec


@runtime_checkable
class Target(Protocol):
    """A diffusion language model, seen as a scorer of canvases."""

    @property
    def spec(self) -> TargetSpec:
        """What the core has to know about the model."""
        ...

    def open(self, prompts: Sequence[Tensor], *, max_new_tokens: int) -> Any:
        """Begins a decode: a context that holds the given ids `[P_b]` of each row (possibly none).

        The context is a value of the target's own type. Nothing has to be computed yet: what is pending
        may be scored in front of the next canvases.
        """
        ...

    def score(self, canvases: Tensor, *, context: Any) -> tuple[Tensor, Any]:
        """One pass: logits `[B, K, N, V]` of `canvases` `[B, K, N]`, and the context for the next pass.

        `logits[b, k, i]` scores the token at canvas position `i`. Canvases of one row must not see each
        other.
        """
        ...

    def extend(self, context: Any, *, block: Tensor, rows: Tensor) -> Any:
        """Appends the finished `block` `[B, L]` to the context of the rows where `rows` `[B]` is true."""
        ...


@runtime_checkable
class DecodingRule(Protocol):
    """One denoising step of the plain decoder, pure in its arguments."""

    @property
    def uses_step(self) -> bool:
        """Whether the commit depends on how many steps the block has had (a quota schedule does)."""
        ...

    def commit(self, logprobs: LogProbs, *, state: State, sampler: Sampler) -> Commit:
        """Which active positions of each state commit, with which tokens; at least one where any is active."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Proposes states that the target may move to; never calls the target."""

    def init(self, spec: TargetSpec, *, batch_size: int) -> Any:
        """The drafter's state of one decode.

        Raises:
            MismatchError: the drafter was made for another target or block length.
        """
        ...

    def propose(
        self, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler, budget: int, carry: Any
    ) -> tuple[Draft | None, Any]:
        """At most `budget - 1` candidates for the states after `state` `[B]`, or None for no draft."""
        ...


@runtime_checkable
class AcceptanceRule(Protocol):
    """Decides which candidate a scored state leads to."""

    @property
    def guarantee(self) -> Guarantee:
        """What a decode that accepts by this rule promises about its text."""
        ...

    def accept(self, candidates: State, *, successors: State, valid: Tensor, with_step: bool) -> Tensor:
        """For each of `candidates` `[B, K]` the index of the candidate to go on with, or -1 `[B, K]`.

        `successors` `[B, K]` are the states the target itself moves to. `with_step` says whether two states
        that differ only in their step count are different states.
        """
        ...
