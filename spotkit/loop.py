"""The decode loop, the only one: plain decoding is this loop with a drafter that proposes nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from spotkit import checks, stop, tree
from spotkit.begin import Job, begin, check_parts, check_prompts
from spotkit.capabilities import Selective, device_of
from spotkit.logprobs import form, normalise
from spotkit.protocols import Target
from spotkit.results import Collector, Result, RowResult
from spotkit.settings import DecodeConfig, Strategy, guarantee_of
from spotkit.types import Commit, Event, Evidence, LogProbs, State, Step, TargetSpec
from spotkit.walk import Walk


def decode(
    target: Target,
    prompts: Sequence[Sequence[int] | Tensor],
    *,
    strategy: Strategy | None = None,
    config: DecodeConfig | None = None,
    row_ids: Sequence[int] | None = None,
) -> Result:
    """Decodes a batch of prompts to the end.

    Args:
        target: the model.
        prompts: token ids of each row; the lengths may differ.
        strategy: rule, drafter, acceptance, budget and window. None takes the rule with which the target's own
            generator decodes, and the drafter that `spotkit.strategy` would take for it.
        config: length, sampling, seed. None takes those of the target's own generator.
        row_ids: keys each row's noise; by default its index. A row decoded alone under the same id and
            seed gives the same text as in a batch.

    Raises:
        ConfigError: a prompt or option that cannot be decoded, before any pass.
        NonFiniteLogitsError: the target returned NaN or infinity where a decision was due.
        PartError, StalledError: a part returned something that its protocol does not allow.
    """
    strategy, config = check_parts(target, strategy, config)
    events = stream(target, prompts, strategy=strategy, config=config, row_ids=row_ids)
    collector = Collector.of(len(prompts))
    for event in events:
        collector.add(event)
    return results_of(target.spec, prompts, collector, strategy=strategy, config=config)


def results_of(
    spec: TargetSpec, prompts: Sequence[Any], collector: Collector, *, strategy: Strategy, config: DecodeConfig
) -> Result:
    """The result of a decode whose events `collector` has gathered."""
    rows = []
    for row, prompt in enumerate(prompts):
        written = {p: t for s in collector.logs[row] for p, t in zip(s.positions, s.tokens, strict=True)}
        reach = len(prompt)
        while reach in written:
            reach += 1
        tokens, reason = stop.trim(
            [written[p] for p in range(len(prompt), reach)], eos_ids=spec.eos_ids, most=config.max_new_tokens
        )
        stats = attrs.evolve(collector.counts[row], new_tokens=len(tokens))
        rows.append(RowResult(tokens, reason, tuple(collector.logs[row]), tuple(collector.passes[row]), stats))
    return Result(tuple(rows), guarantee_of(strategy), config.seed or 0, spec.variant or spec.cache)


def stream(
    target: Target,
    prompts: Sequence[Sequence[int] | Tensor],
    *,
    strategy: Strategy | None = None,
    config: DecodeConfig | None = None,
    row_ids: Sequence[int] | None = None,
) -> Iterator[Event]:
    """Decodes like `decode`, yielding one event per pass."""
    strategy, config = check_parts(target, strategy, config)
    spec = target.spec.for_answer(config.max_new_tokens)
    ids = check_prompts(prompts, spec)
    # A block that is decoded to its end is not ended by an end token, so no draft may stop there.
    shown = attrs.evolve(spec, eos_ids=()) if config.finish_block else spec
    carry = strategy.drafter.init(shown, batch_size=len(ids))
    device = device_of(target)
    job, state, heads = begin(ids, spec=spec, strategy=strategy, config=config, row_ids=row_ids, device=device)
    context = target.open(heads, max_new_tokens=config.max_new_tokens)
    return _passes(target, job, state, context, carry)


@torch.inference_mode()
def _passes(target: Target, job: Job, state: State, context: Any, carry: Any) -> Iterator[Event]:
    strategy, sampler = job.strategy, job.sampler
    evidence: Evidence | None = None
    active = [True] * state.step.shape[0]
    begun = time.perf_counter()
    for index in itertools.count():
        draft = None
        if evidence is not None:
            shown = state.map(torch.clone)  # a drafter that writes into it must not change the text
            proposal = strategy.drafter.propose(
                shown, evidence=evidence, rule=strategy.rule, sampler=sampler, budget=strategy.budget, carry=carry
            )
            draft, carry = checks.proposed(proposal, state=state)
        candidates, valid = tree.assemble(state, draft, budget=strategy.budget, spec=job.spec)
        valid = valid & ~job.finished(state).unsqueeze(-1)
        drafted = time.perf_counter()
        if isinstance(target, Selective):
            admitted = checks.admitted(target.admits(_own(candidates), context=context), canvases=candidates.canvas)
            candidates, valid = tree.selected(candidates, valid, admitted=admitted)
        answer = target.score(_own(candidates), context=context)
        logits, context = checks.scored(answer, canvases=candidates.canvas, vocab_size=job.spec.vocab_size)
        logprobs, commit = _decide(logits, candidates, valid, job)
        successors = candidates.advance(commit)
        links = strategy.acceptance.accept(candidates, successors=successors, valid=valid, with_step=job.with_step)
        links = torch.where(job.finished(successors), -1, checks.linked(links, candidates=candidates))
        walk = Walk.copy(candidates, commit, links, valid=valid, logprobs=logprobs, spec=job.spec)
        paths = tuple(walk.path(row) if live else () for row, live in enumerate(active))
        last = torch.tensor([path[-1] if path else 0 for path in paths], device=logits.device)
        steps = tuple(walk.steps(row, path) if path else () for row, path in enumerate(paths))
        state = _counted(successors.map(lambda t: _pick(t, last)), steps)  # noqa: B023 - used at once
        if strategy.budget > 1:
            evidence = Evidence(
                normalise(_pick(logits, last), job.spec),
                torch.ones_like(state.committed),
                _pick(candidates.committed, last),
            )
        yield Event(
            index=index,
            active=tuple(active),
            candidates=candidates,
            valid=valid,
            paths=paths,
            steps=steps,
            state=state.map(torch.clone),
            seconds=time.perf_counter() - begun,
            draft_seconds=drafted - begun,
        )
        begun = time.perf_counter()
        active = (~job.finished(state)).tolist()
        if not any(active):
            return
        context, state, evidence = _move_on(target, context, state, evidence, job)


def _own(states: State) -> Tensor:
    """The canvases `[B, K, N]`, for a target that may write into them."""
    return states.canvas.clone(memory_format=torch.contiguous_format)


def _decide(logits: Tensor, candidates: State, valid: Tensor, job: Job) -> tuple[LogProbs, Commit]:
    """The rule's commit at every state that counts, all states at once."""
    due = candidates.active & valid.unsqueeze(-1)
    logprobs = form(logits[due], index=due, sampling=job.sampler.sampling, spec=job.spec)
    commit = job.strategy.rule.commit(logprobs, state=candidates, sampler=job.sampler)
    return logprobs, checks.committed(commit, state=candidates)


def _counted(state: State, steps: Sequence[Sequence[Step]]) -> State:
    """`state` with its step counts taken from the `steps` that led there, not from what candidates claimed."""
    taken = torch.tensor([row[-1].step + 1 if row else 0 for row in steps], device=state.step.device)
    return attrs.evolve(state, step=torch.where(state.step == 0, state.step, taken))


def _pick(tensor: Tensor, which: Tensor) -> Tensor:
    """`tensor` `[B, K, ...]` at index `which` `[B]` of `K`."""
    return tensor[torch.arange(tensor.shape[0], device=tensor.device), which]


def _move_on(
    target: Target, context: Any, state: State, evidence: Evidence | None, job: Job
) -> tuple[Any, State, Evidence | None]:
    """Hands finished leading blocks to the context and moves the window of those rows on."""
    length = state.block_length
    while not job.spec.whole_answer:
        more = state.start + length < state.limit
        rows = state.committed[:, :length].all(-1) & more & ~job.finished(state)
        if not bool(rows.any()):
            break
        context = target.extend(context, block=state.canvas[:, :length], rows=rows)
        state = attrs.evolve(
            state,
            canvas=_slide(state.canvas, rows, length, job.spec.mask_id),
            committed=_slide(state.committed, rows, length, False),
            start=torch.where(rows, state.start + length, state.start),
        )
        if evidence is not None:
            evidence = Evidence(
                _slide(evidence.logprobs, rows, length, 0.0),
                _slide(evidence.known, rows, length, False),
                _slide(evidence.committed, rows, length, False),
            )
    return context, state, evidence


def _slide(tensor: Tensor, rows: Tensor, length: int, fill: float | bool) -> Tensor:
    """`tensor` `[B, N, ...]` with the first `length` positions of `rows` dropped and `fill` appended."""
    fresh = torch.full_like(tensor[:, :length], fill)
    moved = torch.cat([tensor[:, length:], fresh], 1)
    return torch.where(rows.view(-1, *[1] * (tensor.ndim - 1)), moved, tensor)
