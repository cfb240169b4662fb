"""Drafters for tests: those that know the answer or the order, and many that propose what a drafter never should.

None may change the text of a decode. Those that take an `inner` drafter spoil its draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from spotkit.logprobs import form, scatter
from spotkit.protocols import DecodingRule, Drafter
from spotkit.results import Result
from spotkit.sampler import Sampler
from spotkit.types import Commit, Draft, Evidence, State, Step, TargetSpec, concat

Tokens = Literal["mask", "eos", "outside", "random"]


class _Toy:
    """What the toy drafters share: the target's spec is all they carry."""

    def init(self, spec: TargetSpec, *, batch_size: int) -> TargetSpec:
        """Keeps the spec."""
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
        """The toy's draft."""
        return self.draft(state, carry, budget), carry

    def draft(self, state: State, spec: TargetSpec, budget: int) -> Draft | None:
        """What to propose."""
        return None


@attrs.frozen
class Clairvoyant(_Toy):
    """Proposes the states that a recorded decode went through.

    Attributes:
        logs: per row id, the commit log of that row.
    """

    logs: Mapping[int, tuple[Step, ...]]

    @classmethod
    def of(cls, result: Result, row_ids: Sequence[int]) -> Clairvoyant:
        """Of the rows of `result`, decoded under `row_ids`."""
        return cls({name: row.log for name, row in zip(row_ids, result.rows, strict=True)})

    def draft(self, state: State, spec: TargetSpec, budget: int) -> Draft | None:
        """The next `budget - 1` states of every row, as far as the window reaches."""
        chain, valid = [], []
        alive = [True] * len(state.step)
        for _ in range(budget - 1):
            places, tokens = torch.zeros_like(state.committed), torch.zeros_like(state.canvas)
            for row, name in enumerate(state.row.tolist()):
                step = self.next_step(state, row, name)
                alive[row] = alive[row] and step is not None
                if step is None or not alive[row]:
                    continue
                for position, token in zip(step.positions, step.tokens, strict=True):
                    places[row, position - int(state.start[row])] = True
                    tokens[row, position - int(state.start[row])] = token
            if not any(alive):
                break
            state = state.advance(Commit(places, tokens))
            chain.append(state.spread(1))
            valid.append(torch.tensor(alive))
        return Draft(concat(chain), torch.stack(valid, 1)) if chain else None

    def next_step(self, state: State, row: int, name: int) -> Step | None:
        """The first recorded step not yet taken, if it lies in the window."""
        start, width = int(state.start[row]), state.canvas.shape[-1]
        for step in self.logs.get(name, ()):
            inside = [p - start for p in step.positions]
            if all(i < width for i in inside) and any(i >= 0 and not state.committed[row, i] for i in inside):
                return step
        return None


@attrs.frozen
class Oracle(_Toy):
    """Knows in which order a recorded decode commits, and drafts the tokens that the stale evidence has: a chain.

    No drafter that predicts the order can beat it at the same budget; what it misses is tokens that still change. A
    measuring tool, of use only where the decode has been recorded.

    Attributes:
        logs: per row id, the commit log of that row.
    """

    logs: Mapping[int, tuple[Step, ...]]

    @classmethod
    def of(cls, result: Result, row_ids: Sequence[int]) -> Oracle:
        """Of the rows of `result`, decoded under `row_ids`."""
        return cls(Clairvoyant.of(result, row_ids).logs)

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
        """The next `budget - 1` states in the recorded order, as far as the evidence reaches."""
        chain, valid = [], []
        alive = torch.ones_like(state.step, dtype=torch.bool)
        for _ in range(budget - 1):
            places = self._next(state)
            alive = alive & places.any(-1) & (evidence.known | ~places).all(-1)
            index = places & alive.unsqueeze(-1)
            if not bool(alive.any()):
                break
            logprobs = form(evidence.logprobs[index], index=index, sampling=sampler.sampling, spec=carry)
            tokens = scatter(sampler.draw(logprobs, state=state), index, 0)
            state = state.advance(Commit(index, tokens))
            chain.append(state.spread(1))
            valid.append(alive)
        return (Draft(concat(chain), torch.stack(valid, 1)) if chain else None), carry

    def _next(self, state: State) -> Tensor:
        """Positions of the next recorded step `[B, N]`."""
        known = Clairvoyant(self.logs)
        places = torch.zeros_like(state.committed)
        for row, name in enumerate(state.row.tolist()):
            step = known.next_step(state, row, name)
            for position in () if step is None else step.positions:
                places[row, position - int(state.start[row])] = True
        return places


@attrs.frozen
class Forced(_Toy):
    """Proposes to commit open positions with tokens that no target should draw.

    The candidates commit the first one, two, … open positions of the window.

    Attributes:
        tokens: the mask id, the end token, ids outside the vocabulary, or any ids.
    """

    tokens: Tokens
    seed: int = 0

    def draft(self, state: State, spec: TargetSpec, budget: int) -> Draft | None:
        """Candidates over the first open positions."""
        count = max(budget - 1, 1)
        spread = state.spread(count)
        rank = (~state.committed & state.exists).long().cumsum(-1).unsqueeze(1)
        places = ~spread.committed & (rank <= torch.arange(1, count + 1).view(1, -1, 1))
        made = {
            "mask": torch.full_like(spread.canvas, spec.mask_id),
            "eos": torch.full_like(spread.canvas, spec.eos_ids[0] if spec.eos_ids else 0),
            "outside": torch.where(rank % 2 == 0, -1 - spread.canvas, spec.vocab_size + spread.canvas),
            "random": _random(self.seed, spec.vocab_size, tuple(spread.canvas.shape)),
        }[self.tokens]
        return Draft(attrs.evolve(spread.with_tokens(places, made), step=spread.step + 1), _all(spread.step))


@attrs.frozen
class RandomStates(_Toy):
    """Proposes `count` states with random commits, tokens and step counts, near and far."""

    count: int = 6
    seed: int = 0

    def draft(self, state: State, spec: TargetSpec, budget: int) -> Draft | None:
        """Random states."""
        spread = state.spread(self.count)
        shape = tuple(spread.canvas.shape)
        share = (1 + torch.arange(self.count)) / self.count
        coins = _random(self.seed + int(state.committed.sum()), 1000, shape) / 1000
        places = ~spread.committed & (coins < share.view(1, -1, 1))
        moved = spread.with_tokens(places, _random(self.seed + 1, spec.vocab_size, shape))
        return Draft(attrs.evolve(moved, step=spread.step + _random(self.seed + 2, 3, shape[:2])), _all(spread.step))


@attrs.frozen
class Nothing(_Toy):
    """Proposes nothing, in any of three ways: no draft, one without candidates, one that means none."""

    kind: Literal["none", "empty", "invalid"] = "none"

    def draft(self, state: State, spec: TargetSpec, budget: int) -> Draft | None:
        """Nothing."""
        if self.kind == "none":
            return None
        spread = state.spread(0 if self.kind == "empty" else 3)
        return Draft(spread, torch.zeros_like(spread.step, dtype=torch.bool))


@attrs.frozen
class Altered:
    """Changes the draft of another drafter.

    Attributes:
        inner: the other drafter.
        change: (draft, state, spec) -> draft.
    """

    inner: Drafter
    change: Callable[[Draft, State, TargetSpec], Draft]

    def init(self, spec: TargetSpec, *, batch_size: int) -> tuple[TargetSpec, Any]:
        """The inner drafter's carry, and the spec."""
        return spec, self.inner.init(spec, batch_size=batch_size)

    def propose(
        self,
        state: State,
        *,
        evidence: Evidence,
        rule: DecodingRule,
        sampler: Sampler,
        budget: int,
        carry: tuple[TargetSpec, Any],
    ) -> tuple[Draft | None, tuple[TargetSpec, Any]]:
        """The changed draft."""
        spec, inner = carry
        draft, inner = self.inner.propose(
            state, evidence=evidence, rule=rule, sampler=sampler, budget=budget, carry=inner
        )
        return (draft if draft is None else self.change(draft, state, spec)), (spec, inner)


@attrs.frozen
class Joined:
    """Proposes what several drafters propose, one after the other."""

    parts: tuple[Drafter, ...]

    def init(self, spec: TargetSpec, *, batch_size: int) -> tuple[Any, ...]:
        """All carries."""
        return tuple(part.init(spec, batch_size=batch_size) for part in self.parts)

    def propose(
        self,
        state: State,
        *,
        evidence: Evidence,
        rule: DecodingRule,
        sampler: Sampler,
        budget: int,
        carry: tuple[Any, ...],
    ) -> tuple[Draft | None, tuple[Any, ...]]:
        """All drafts in one."""
        given = [
            part.propose(state, evidence=evidence, rule=rule, sampler=sampler, budget=budget, carry=own)
            for part, own in zip(self.parts, carry, strict=True)
        ]
        drafts = [draft for draft, _ in given if draft is not None]
        carries = tuple(own for _, own in given)
        if not drafts:
            return None, carries
        return Draft(concat([d.states for d in drafts]), torch.cat([d.valid for d in drafts], 1)), carries


def wrong_tokens(draft: Draft, state: State, spec: TargetSpec) -> Draft:
    """Every token that a candidate adds is replaced by another, neither the mask id nor outside the vocabulary."""
    added = draft.states.committed & ~state.committed.unsqueeze(1)
    other = (draft.states.canvas + 1) % spec.vocab_size
    other = torch.where(other == spec.mask_id, (other + 1) % spec.vocab_size, other)
    return attrs.evolve(draft, states=draft.states.with_tokens(added, other))


def repeated(draft: Draft, state: State, spec: TargetSpec) -> Draft:
    """Every candidate comes five times, and the current state comes first."""
    root = state.spread(1)
    again = draft.states.map(lambda t: t.repeat_interleave(5, 1))
    valid = draft.valid.repeat_interleave(5, 1)
    return Draft(concat([root, again]), torch.cat([_all(root.step), valid], 1))


def shifted_steps(offset: int) -> Callable[[Draft, State, TargetSpec], Draft]:
    """Every candidate has a step count that is wrong by `offset`."""
    return lambda draft, state, spec: attrs.evolve(
        draft, states=attrs.evolve(draft.states, step=draft.states.step + offset)
    )


def rewritten(draft: Draft, state: State, spec: TargetSpec) -> Draft:
    """Every candidate changes what is committed: by turns it has another token there, or has it open again."""
    old = state.committed.unsqueeze(1) & torch.ones_like(draft.states.committed)
    odd = (torch.arange(draft.valid.shape[1]) % 2 == 1).view(1, -1, 1)
    states = draft.states.with_tokens(old & ~odd, (draft.states.canvas + 1) % spec.vocab_size)
    states = attrs.evolve(states, committed=states.committed & ~(old & odd))
    return attrs.evolve(draft, states=states)


def beyond_end(draft: Draft, state: State, spec: TargetSpec) -> Draft:
    """Every candidate also commits the positions that do not exist, if the window holds any."""
    return attrs.evolve(
        draft, states=draft.states.with_tokens(~draft.states.exists, torch.zeros_like(draft.states.canvas))
    )


def elsewhere(draft: Draft, state: State, spec: TargetSpec) -> Draft:
    """Every candidate claims another place, end, and row than the state it was drafted for."""
    states = draft.states
    return attrs.evolve(
        draft, states=attrs.evolve(states, start=states.start + 1, limit=states.limit + 64, row=states.row + 1)
    )


def _all(like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool)


def _random(seed: int, below: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))
