"""Rules that rank by margin or entropy, follow Dream's schedule, or see one part of the block after the other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotkit.errors import ConfigError
from spotkit.logprobs import Sampling, narrow
from spotkit.rules import Ordered, Sequential, Static, Threshold, linear_schedule
from spotkit.sampler import Sampler
from spotkit.types import LogProbs, State

GREEDY = Sampler(Sampling(0.0))


def state_of(committed, *, step=0, block_length=None):
    width = len(committed)
    tensors = (torch.tensor([step]), torch.tensor([0]), torch.tensor([width]), torch.tensor([0]))
    return State(torch.full((1, width), 9), torch.tensor([committed]), *tensors, block_length or width)


def logprobs_of(probabilities, index):
    raw = torch.tensor(probabilities, dtype=torch.float64).log()
    return LogProbs(raw, raw, raw, index)


def places(rule, probabilities, state):
    made = rule.commit(logprobs_of(probabilities, state.active), state=state, sampler=GREEDY)
    return made.positions[0].nonzero().squeeze(-1).tolist()


@given(length=st.integers(1, 200), steps=st.none() | st.integers(1, 300))
def test_the_linear_schedule_fills_the_block_and_never_rests(length, steps):
    table = linear_schedule(length, steps)
    assert sum(table) == length
    assert min(table) >= 1
    assert len(table) <= (steps or length)


@pytest.mark.parametrize(
    ("length", "steps", "table"),
    [
        (8, 1, (8,)),
        (12, 5, (2, 2, 2, 2, 4)),  # 12(1-t1/t0) = 2.398, 10 * .2497 = 2.497, 8 * .3327, 6 * .4985 -> 2, rest 4
    ],
)
def test_linear_schedules(length, steps, table):
    assert linear_schedule(length, steps) == table


# Four tokens at three positions: the most probable token, the widest margin and the lowest entropy are at
# different ones.
THREE = [[0.50, 0.46, 0.02, 0.02], [0.49, 0.17, 0.17, 0.17], [0.45, 0.45, 0.09, 0.01]]


def test_measures_rank_differently():
    state = state_of([False] * 3)
    assert places(Static(), THREE, state) == [0]
    assert places(Static(measure="margin"), THREE, state) == [1]
    assert places(Static(measure="entropy"), THREE, state) == [0]
    flat = [[0.6, 0.1, 0.1, 0.1, 0.1], [0.5, 0.5, 1e-9, 1e-9, 1e-9]]
    assert places(Static(), flat, state_of([False] * 2)) == [0]
    assert places(Static(measure="entropy"), flat, state_of([False] * 2)) == [1]


@given(
    committed=st.lists(st.booleans(), min_size=2, max_size=12).filter(lambda c: not all(c)),
    lead=st.booleans(),
    span=st.none() | st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_parts_are_filled_in_order(committed, lead, span, seed):
    state = state_of(committed)
    drawn = torch.rand(committed.count(False), 4, generator=torch.Generator().manual_seed(seed)) + 0.01
    rule = Ordered(Threshold(0.3, fallback="best"), lead=lead, span=span)
    made = places(rule, (drawn / drawn.sum(-1, keepdim=True)).tolist(), state)
    open_positions = [i for i, c in enumerate(committed) if not c]

    def part(i):
        return -1 if lead and i == 0 else i // (span or len(committed))

    first = min(part(i) for i in open_positions)
    allowed = [i for i in open_positions if part(i) == first]
    assert made
    assert set(made) <= set(allowed)
    inner = narrow(
        logprobs_of(drawn.tolist(), state.active), torch.tensor([[i in allowed for i in range(len(committed))]])
    )
    assert inner.index[0].nonzero().squeeze(-1).tolist() == allowed
    assert len(inner.raw) == len(allowed)


@pytest.mark.parametrize("rule", [Static(2), Sequential(2), Threshold(0.9, fallback="quota", steps_per_block=2)])
def test_rules_that_count_steps_cannot_be_ordered(rule):
    with pytest.raises(ConfigError, match="it counts the block's steps"):
        Ordered(rule)
    with pytest.raises(ConfigError, match="span=0"):
        Ordered(Static(), span=0)


@pytest.mark.parametrize("rule", [5, None, "static", Static])
def test_only_rules_can_be_ordered(rule):
    with pytest.raises(ConfigError, match="rule="):
        Ordered(rule)


@given(step=st.integers(0, 9), seed=st.integers(0, 99), steps=st.integers(1, 8), left=st.integers(1, 8))
def test_no_more_than_the_schedule_has_granted(step, seed, steps, left):
    state = state_of([True] * (8 - left) + [False] * left, step=step)
    drawn = torch.rand(left, 3, generator=torch.Generator().manual_seed(seed)) + 0.01
    probabilities = (drawn / drawn.sum(-1, keepdim=True)).tolist()
    rule = Threshold(0.4, comparator=">=", fallback="best", steps_per_block=steps, most="schedule")
    made = places(rule, probabilities, state)
    granted = 8 // steps * (min(step, steps - 1) + 1)
    passed = [p for p in probabilities if max(p) >= 0.4]
    assert len(made) == max(1, min(len(passed), granted - (8 - left)))
