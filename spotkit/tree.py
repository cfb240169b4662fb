"""Candidate states: what the loop does with a draft, and the simplest draft there is.

`growth.py` has the tree that grows best first.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from spotkit import checks
from spotkit.acceptance import equal_states
from spotkit.logprobs import form
from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.types import Draft, Evidence, State, TargetSpec, concat


def assemble(state: State, draft: Draft | None, *, budget: int, spec: TargetSpec) -> tuple[State, Tensor]:
    """The states to score `[B, K]`, `K <= budget`, the current one first, and which of them count `[B, K]`.

    Candidates that do not extend the current state, are the current state, repeat another one or lie over
    the budget are left out.
    """
    root = state.spread(1)
    live = state.active.any(-1, keepdim=True)
    if draft is None or budget == 1 or draft.valid.numel() == 0:
        return root, live
    states = attrs.evolve(draft.states, start=root.start, limit=root.limit, row=root.row)
    states = states.map(lambda t: t.expand(-1, draft.valid.shape[1], *t.shape[2:]))
    added = states.committed & ~root.committed
    legal = (states.canvas >= 0) & (states.canvas < spec.vocab_size) & (states.canvas != spec.mask_id)
    kept = ~root.committed | (states.committed & (states.canvas == root.canvas))
    extends = (kept & (~added | (legal & states.exists))).all(-1) & added.any(-1)
    valid = draft.valid & live & extends & (states.step >= 0)
    valid = valid & states.active.any(-1)  # a full window has nothing to be scored for
    states, valid = _front(states, valid, 4 * budget)
    same = equal_states(states, states, with_step=True) & valid.unsqueeze(1)
    valid = valid & ~(same.tril(-1).any(-1))
    states, valid = _front(states, valid, budget - 1)
    states = attrs.evolve(states, canvas=torch.where(states.committed, states.canvas, spec.mask_id))
    return concat([root, states]), torch.cat([live, valid], 1)


def selected(candidates: State, valid: Tensor, *, admitted: Tensor) -> tuple[State, Tensor]:
    """The current states and those `candidates` `[B, K]` that count and are `admitted` `[B, K]`; fewer to score."""
    states, kept = candidates.map(lambda t: t[:, 1:]), valid[:, 1:] & admitted[:, 1:]
    states, kept = _front(states, kept, kept.shape[1])
    return concat([candidates.map(lambda t: t[:, :1]), states]), torch.cat([valid[:, :1], kept], 1)


def _front(states: State, valid: Tensor, most: int) -> tuple[State, Tensor]:
    """Moves valid candidates to the front, in their order, and cuts after the last (at most `most`)."""
    width = min(most, int(valid.sum(-1).max()))
    order = valid.long().sort(dim=-1, descending=True, stable=True).indices[:, :width]

    def pick(tensor: Tensor) -> Tensor:
        trailing = tensor.shape[2:]
        return tensor.gather(1, order.view(*order.shape, *[1] * len(trailing)).expand(*order.shape, *trailing))

    return states.map(pick), pick(valid)


def rule_chain(
    state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler, spec: TargetSpec, depth: int
) -> Draft | None:
    """The states that `rule` would go through if the target went on saying what it said: a nested chain.

    Works with any rule and, with the shared tape, at any temperature. The chain goes on into later blocks
    of the window as far as they have been scored.
    """
    states, valid = [], []
    alive = torch.ones_like(state.step, dtype=torch.bool)
    for _ in range(depth):
        active = state.active
        alive = alive & active.any(-1) & (evidence.known | ~active).all(-1)
        index = active & alive.unsqueeze(-1)
        if not bool(alive.any()):
            break
        logprobs = form(evidence.logprobs[index], index=index, sampling=sampler.sampling, spec=spec)
        commit = checks.committed(rule.commit(logprobs, state=state, sampler=sampler), state=state)
        state = state.advance(commit)
        states.append(state.spread(1))
        valid.append(alive)
    return Draft(concat(states), torch.stack(valid, 1)) if states else None
