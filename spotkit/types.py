"""Immutable values that the parts of spotkit hand to each other.

Shapes: `B` rows (sequences), `K` states per row, `N = W * L` canvas positions in a window of `W` blocks of
length `L`, `V` vocabulary. `...` stands for `[B]` or `[B, K]`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Literal

import attrs
import torch
from attrs.validators import optional
from torch import Tensor

from spotkit.errors import ConfigError
from spotkit.fields import instance, one_of, positive


class Guarantee(enum.Enum):
    """What a decode promises about its text."""

    EXACT_PATH = "same tape, same commits, same text as the plain decoder"
    EXACT_LAW = "same distribution as the plain decoder"
    APPROXIMATE = "no promise"

    def covers(self, other: Guarantee) -> bool:
        """Whether whoever promises this promises `other` as well."""
        ranks = list(Guarantee)
        return ranks.index(self) <= ranks.index(other)


@attrs.frozen
class TargetSpec:
    """What the core has to know about a target model."""

    name: str = attrs.field(validator=instance(str))
    vocab_size: int = attrs.field(validator=positive)
    """Width of the logits."""
    mask_id: int = attrs.field(validator=instance(int))
    eos_ids: tuple[int, ...] = attrs.field(validator=instance(tuple))
    pad_id: int = attrs.field(validator=instance(int))
    block_length: int = attrs.field(validator=positive)
    block_grid: Literal["absolute", "prompt", "answer"] = attrs.field(
        default="absolute", validator=one_of("absolute", "prompt", "answer")
    )
    """Where blocks begin: at multiples of the block length from position 0, or at the end of the prompt.

    With `"answer"` the whole answer is one block, whatever its length.
    """
    attention: Literal["block_causal", "full"] = attrs.field(
        default="block_causal", validator=one_of("block_causal", "full")
    )
    cache: Literal["exact", "approximate", "none"] = attrs.field(
        default="exact", validator=one_of("exact", "approximate", "none")
    )
    """What keys and values of the context are worth; one that is refreshed at a block's start is approximate."""
    variant: str = attrs.field(default="", validator=instance(str))
    """What the adapter calls its way of caching ("prefix", say), if there are several."""
    dtype: str = attrs.field(default="", validator=instance(str))
    """Numbers that the weights are computed in ("bfloat16", say), as records of a run name them."""
    token_limit: int | None = attrs.field(default=None, validator=instance(int, type(None)))
    """Number of ids the tokenizer knows, if smaller than `vocab_size`; wider ids are never written."""
    max_length: int | None = attrs.field(default=None, validator=optional(positive))
    """Positions the model was made for, if known; a longer text is decoded with a warning."""
    fingerprint: str = attrs.field(default="", validator=instance(str))
    """Identifies the weights, so that a trained drafter can tell its target."""

    def __attrs_post_init__(self) -> None:
        limit = self.vocab_size if self.token_limit is None else self.token_limit
        if not 0 < limit <= self.vocab_size:
            raise ConfigError(f"token_limit={limit}: must lie in 1..vocab_size={self.vocab_size}")
        for name in ("mask_id", "pad_id"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must not be negative")
        for token in self.eos_ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.vocab_size:
                raise ConfigError(f"eos_ids={self.eos_ids!r}: give ids from 0 to {self.vocab_size - 1}")
            if token == self.mask_id:
                raise ConfigError(f"eos_ids={self.eos_ids!r}: the mask id {token} cannot end a text")
        if self.attention == "full" and self.block_grid == "absolute":
            raise ConfigError(
                f"block_grid={self.block_grid!r}: with attention='full' every row of a batch needs a canvas of the "
                "same length, so blocks must begin at the end of the prompt; use block_grid='prompt' or 'answer'"
            )
        if self.block_grid == "answer" and not self.whole_answer:
            raise ConfigError(
                f"block_grid='answer': attention={self.attention!r} and cache={self.cache!r} need blocks of one "
                "length; use block_grid='prompt' or 'absolute'"
            )

    def for_answer(self, max_new_tokens: int) -> TargetSpec:
        """The spec with the block length that an answer of so many tokens has."""
        if self.block_grid != "answer":
            return self
        return attrs.evolve(self, block_grid="prompt", block_length=max_new_tokens)

    @property
    def whole_answer(self) -> bool:
        """Whether a canvas holds all blocks of the answer, so that none ever leaves it for the context."""
        return self.attention == "full" and self.cache != "approximate"


@attrs.frozen(eq=False)
class State:
    """Canvases with their committed positions, one per leading index.

    Whether a position is committed is a boolean of its own, never read off the ids.
    """

    canvas: Tensor
    """Token ids `[..., N]`; open positions hold the mask id."""
    committed: Tensor
    """Which positions are final, bool `[..., N]`."""
    step: Tensor
    """Denoising steps already taken in the open block `[...]`."""
    start: Tensor
    """Absolute position of the first canvas position `[...]`."""
    limit: Tensor
    """Absolute position at which the last block of the row ends `[...]`; positions beyond do not exist."""
    row: Tensor
    """Row id that keys the tape `[...]`."""
    block_length: int

    @property
    def positions(self) -> Tensor:
        """Absolute positions `[..., N]`."""
        return self.start.unsqueeze(-1) + torch.arange(self.canvas.shape[-1], device=self.start.device)

    @property
    def exists(self) -> Tensor:
        """Which canvas positions lie before the end of the row's last block, bool `[..., N]`."""
        return self.positions < self.limit.unsqueeze(-1)

    @property
    def open_block(self) -> Tensor:
        """Index in the window of the first block with an open position `[...]`; `W` if there is none."""
        settled = self.committed | ~self.exists
        blocks = settled.reshape(*settled.shape[:-1], -1, self.block_length)
        return blocks.all(-1).long().cumprod(-1).sum(-1)

    @property
    def active(self) -> Tensor:
        """Open positions of the open block: those the next step may commit, bool `[..., N]`."""
        block = torch.arange(self.canvas.shape[-1], device=self.canvas.device) // self.block_length
        return ~self.committed & self.exists & (block == self.open_block.unsqueeze(-1))

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """The state with `function` applied to each of its tensors (indexing, expanding, moving)."""
        return State(
            canvas=function(self.canvas),
            committed=function(self.committed),
            step=function(self.step),
            start=function(self.start),
            limit=function(self.limit),
            row=function(self.row),
            block_length=self.block_length,
        )

    def spread(self, count: int) -> State:
        """`[B, ...]` repeated to `[B, count, ...]` (views)."""
        return self.map(lambda t: t.unsqueeze(1).expand(t.shape[0], count, *t.shape[1:]))

    def with_tokens(self, positions: Tensor, tokens: Tensor) -> State:
        """The same state with `tokens` committed at `positions` (bool), the step count left alone."""
        return attrs.evolve(
            self,
            canvas=torch.where(positions, tokens, self.canvas),
            committed=self.committed | positions,
        )

    def advance(self, commit: Commit) -> State:
        """The state after one denoising step that made `commit`."""
        moved = self.with_tokens(commit.positions, commit.tokens)
        step = torch.where(moved.open_block > self.open_block, torch.zeros_like(self.step), self.step + 1)
        return attrs.evolve(moved, step=torch.where(commit.positions.any(-1), step, self.step))


def concat(states: Sequence[State]) -> State:
    """Joins `[B, K_i]` states along `K`."""
    return State(
        canvas=torch.cat([s.canvas for s in states], 1),
        committed=torch.cat([s.committed for s in states], 1),
        step=torch.cat([s.step for s in states], 1),
        start=torch.cat([s.start for s in states], 1),
        limit=torch.cat([s.limit for s in states], 1),
        row=torch.cat([s.row for s in states], 1),
        block_length=states[0].block_length,
    )


@attrs.frozen(eq=False)
class Commit:
    """What one denoising step fixes: positions bool `[..., N]` and the tokens there `[..., N]`."""

    positions: Tensor
    tokens: Tensor


@attrs.frozen(eq=False)
class LogProbs:
    """Log-probabilities of the positions that have to be decided, formed once per pass.

    The `M` rows are the true entries of `index`, in row-major order.
    """

    raw: Tensor
    """Log-probs at temperature 1, suppressed ids at minus infinity `[M, V]`."""
    tempered: Tensor
    """Log-probs at the temperature `[M, V]`; `raw` when decoding greedily."""
    law: Tensor
    """Log-probs that tokens are drawn from: tempered, then top-k, then top-p `[M, V]`."""
    index: Tensor
    """Which positions the rows belong to, bool `[..., N]`."""


@attrs.frozen(eq=False)
class Evidence:
    """What the target has said at the deepest state it has scored: stale for every state after it."""

    logprobs: Tensor
    """Log-probs at temperature 1 `[B, N, V]`; arbitrary where not `known`."""
    known: Tensor
    """Which positions have been scored, bool `[B, N]`."""
    committed: Tensor
    """Which positions were committed in the state that was scored, bool `[B, N]`."""


@attrs.frozen(eq=False)
class Draft:
    """Candidate states `[B, K]`, root not included, and which of them are meant `[B, K]`."""

    states: State
    valid: Tensor


@attrs.frozen
class Step:
    """One denoising step of one row, as it stands in the commit log."""

    block: int
    """Absolute position of the block's first token."""
    step: int
    """Steps taken in that block before this one."""
    positions: tuple[int, ...]
    """Absolute positions committed."""
    tokens: tuple[int, ...]


@attrs.frozen(eq=False)
class Event:
    """What one pass did, for every row."""

    index: int
    """Number of the pass, from 0."""
    active: tuple[bool, ...]
    """Which rows the pass served."""
    candidates: State
    """The states scored `[B, K]`, the current one first."""
    valid: Tensor
    """Which of them count, bool `[B, K]`."""
    paths: tuple[tuple[int, ...], ...]
    """Per row the accepted states, as indices into `candidates`."""
    steps: tuple[tuple[Step, ...], ...]
    """Per row the denoising steps taken."""
    state: State
    """Where the rows stand after the pass `[B]`, before the window moves on."""
    seconds: float
    draft_seconds: float
