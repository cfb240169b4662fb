from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotkit.logprobs import Sampling
from spotkit.protocols import DecodingRule
from spotkit.rules import EntropyBound, Factor, Sequential, Static, Threshold, schedule
from spotkit.sampler import Sampler
from spotkit.testing.cases import rules
from spotkit.types import Commit, LogProbs, State

GREEDY = Sampler(Sampling(0.0))


def state_of(committed: list[bool], *, step: int = 0, block_length: int | None = None) -> State:
    width = len(committed)
    return State(
        canvas=torch.full((1, width), 9),
        committed=torch.tensor([committed]),
        step=torch.tensor([step]),
        start=torch.tensor([0]),
        limit=torch.tensor([width]),
        row=torch.tensor([0]),
        block_length=block_length or width,
    )


def logprobs_of(confidence: list[float], index: torch.Tensor) -> LogProbs:
    """Two tokens per position: token 1 has the probability given, token 0 the rest."""
    first = torch.tensor(confidence, dtype=torch.float64)
    raw = torch.stack([1 - first, first], -1).log()
    return LogProbs(raw, raw, raw, index)


def commit(rule: DecodingRule, confidence: list[float], state: State) -> Commit:
    """`confidence` is that of the active positions, in order; at least one half each."""
    return rule.commit(logprobs_of(confidence, state.active), state=state, sampler=GREEDY)


def places(made: Commit) -> list[int]:
    return made.positions[0].nonzero().squeeze(-1).tolist()


def factor_reference(sure: list[float], factor: float) -> int:
    """How many of the most confident commit, after the source's own loop."""
    ordered = sorted(sure, reverse=True)
    limits = [-1.0, *(1 - factor / (n + 1) for n in range(2, len(ordered) + 1))]
    last = next((i for i in range(len(ordered)) if ordered[i] < limits[i]), len(ordered) - 1)
    return last + 1 if last in (0, len(ordered) - 1) else last


@given(sure=st.lists(st.floats(0.5, 1 - 1e-6), min_size=1, max_size=9), factor=st.sampled_from([0.0, 0.3, 1.0, 2.5]))
def test_factor_commits_what_the_source_does(sure: list[float], factor: float) -> None:
    made = commit(Factor(factor), sure, state_of([False] * len(sure)))
    count = factor_reference(sure, factor)
    best = sorted(range(len(sure)), key=lambda i: -sure[i])[:count]
    assert places(made) == sorted(best)


@pytest.mark.parametrize(
    ("factor", "sure", "chosen"),
    [
        (1.0, [0.9, 0.8, 0.7, 0.6], [0, 1]),  # limits: none, 1 - 1/3, 1 - 1/4, 1 - 1/5
        (1.0, [0.66, 0.5, 0.5, 0.5], [0]),
        (1.0, [0.9, 0.8, 0.76, 0.6], [0, 1, 2, 3]),  # only the last one fails
        (0.0, [0.9, 0.9, 0.9, 0.9], [0]),
        (1.0, [0.6], [0]),
    ],
)
def test_factor(factor: float, sure: list[float], chosen: list[int]) -> None:
    assert places(commit(Factor(factor), sure, state_of([False] * len(sure)))) == chosen


def entropy(sure: float) -> float:
    return -sum(p * math.log(p + 1e-10) for p in (sure, 1 - sure))


@given(
    sure=st.lists(st.floats(0.5, 1 - 1e-6), min_size=1, max_size=9), bound=st.sampled_from([0.0, 0.2, 0.35, 1.0, 9.0])
)
def test_entropy_bound_commits_the_longest_prefix_within_the_bound(sure: list[float], bound: float) -> None:
    made = places(commit(EntropyBound(bound), sure, state_of([True, *[False] * len(sure)])))
    order = sorted(range(len(sure)), key=lambda i: entropy(sure[i]))
    costs = [sum(entropy(sure[i]) for i in order[:n]) - entropy(sure[order[n - 1]]) for n in range(1, len(sure) + 1)]
    near = min((abs(cost - bound) for cost in costs[1:]), default=1.0)
    if near > 1e-9 and len({round(entropy(p), 12) for p in sure}) == len(sure):
        count = sum(cost <= bound for cost in costs)
        assert made == sorted(1 + i for i in order[: max(count, 1)])
    assert made


def test_entropy_bound_orders_by_what_it_is_told_to() -> None:
    """With two tokens all measures order alike; with three they need not."""
    raw = torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.2, 0.2], [0.55, 0.44, 0.01]], dtype=torch.float64).log()
    state = state_of([False] * 3)
    logprobs = LogProbs(raw, raw, raw, state.active)
    chosen = {
        measure: places(EntropyBound(0.0, measure=measure).commit(logprobs, state=state, sampler=GREEDY))
        for measure in ("probability", "margin", "entropy")
    }
    assert chosen == {"probability": [1], "margin": [1], "entropy": [0]}


@given(length=st.integers(1, 64), steps=st.none() | st.integers(1, 130))
def test_the_schedule_fills_the_block(length: int, steps: int | None) -> None:
    table = schedule(length, steps)
    assert sum(table) == length
    assert len(table) == (steps or length)
    assert list(table) == sorted(table, reverse=True)
    assert 0 <= table[0] - table[-1] <= 1
    assert min(table) >= 0


@pytest.mark.parametrize(
    ("length", "steps", "table"),
    [(8, None, (1,) * 8), (8, 3, (3, 3, 2)), (4, 1, (4,)), (3, 5, (1, 1, 1, 0, 0)), (7, 4, (2, 2, 2, 1))],
)
def test_schedules(length: int, steps: int | None, table: tuple[int, ...]) -> None:
    assert schedule(length, steps) == table


@given(rule=rules(), length=st.integers(1, 6), seed=st.integers(0, 99), taken=st.integers(0, 12))
def test_every_step_commits_active_positions_only_and_at_least_one(
    rule: DecodingRule, length: int, seed: int, taken: int
) -> None:
    """At any step count, also beyond the schedule."""
    made_up = torch.Generator().manual_seed(seed)
    committed = torch.rand(2 * length, generator=made_up) < 0.5
    state = state_of(committed.tolist(), step=taken, block_length=length)
    active = state.active
    logits = torch.randint(0, 3, (int(active.sum()), 4), generator=made_up).double().log_softmax(-1)
    made = rule.commit(LogProbs(logits, logits, logits, active), state=state, sampler=GREEDY)
    assert bool((active | ~made.positions).all())
    assert bool(made.positions.any()) == bool(active.any())


@pytest.mark.parametrize(("step", "count"), [(0, 2), (1, 2), (2, 1), (3, 1), (9, 1)])
@pytest.mark.parametrize("rule", [Static(3), Sequential(3)])
def test_the_step_decides_the_count(rule: DecodingRule, step: int, count: int) -> None:
    made = commit(rule, [0.6] * 5, state_of([False] * 5, step=step))
    assert places(made) == list(range(count))
    assert rule.quota(step, block_length=5) == count


def test_static_takes_the_most_confident_and_ties_go_left() -> None:
    state = state_of([False, True, False, False, False])
    assert places(commit(Static(), [0.6, 0.9, 0.9, 0.7], state)) == [2]
    assert places(commit(Static(2), [0.6, 0.9, 0.9, 0.9], state)) == [2, 3, 4]
    wide = state_of([False] * 300)
    assert places(commit(Static(), [0.75] * 300, wide)) == [0]
    assert places(commit(Static(3), [0.75] * 300, wide)) == list(range(100))


def test_sequential_takes_the_leftmost() -> None:
    state = state_of([True, False, True, False, False])
    made = commit(Sequential(2), [0.5, 0.9, 0.99], state)
    assert places(made) == [1, 3, 4]
    assert made.tokens[0, [1, 3, 4]].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        (Threshold(0.5, comparator=">"), [1]),
        (Threshold(0.5, comparator=">="), [0, 1, 2, 3]),
        (Threshold(0.75, comparator=">"), [1]),
        (Threshold(0.75, comparator=">="), [1]),
        (Threshold(0.9), [1]),
        (Threshold(0.9, steps_per_block=2), [0, 1]),
        (Threshold(0.6, steps_per_block=2), [0, 1]),  # one passes, two are due
        (Threshold(0.9, steps_per_block=1), [0, 1, 2, 3]),
        (Threshold(0.9, fallback="best", steps_per_block=1), [1]),
        (Threshold(0.0, comparator=">", fallback="best"), [0, 1, 2, 3]),
        (Threshold(1.0, comparator=">=", fallback="best"), [1]),
        (Threshold(7.0, fallback="best"), [1]),
    ],
)
def test_threshold(rule: Threshold, chosen: list[int]) -> None:
    """Exact binary fractions, so that a probability can equal the threshold."""
    state = state_of([False] * 4)
    assert places(commit(rule, [0.5, 0.75, 0.5, 0.5], state)) == chosen


def test_more_than_the_quota_may_pass_a_threshold() -> None:
    state = state_of([False] * 4)
    assert places(commit(Threshold(0.7, steps_per_block=4), [0.75, 0.5, 0.75, 0.75], state)) == [0, 2, 3]


@pytest.mark.parametrize(("kind", "chosen"), [("raw", [0]), ("tempered", [1]), ("filtered", [2])])
@pytest.mark.parametrize("make", [Static, lambda confidence: Threshold(0.99, confidence=confidence)])
def test_the_confidence_is_of_the_kind_asked_for(make, kind: str, chosen: list[int]) -> None:
    def at(*confidence: float) -> torch.Tensor:
        return torch.tensor([[c, -math.inf] for c in confidence])

    state = state_of([False] * 3)
    logprobs = LogProbs(at(-1, -2, -3), at(-2, -1, -3), at(-2, -3, -1), state.active)
    assert places(make(confidence=kind).commit(logprobs, state=state, sampler=GREEDY)) == chosen


def test_a_drawn_token_of_no_confidence_still_counts_as_open() -> None:
    """Filtered confidence can be minus infinity; positions that may not commit stay below it."""
    state = state_of([True, False, True])
    low = torch.tensor([[-math.inf, -math.inf]])
    logprobs = LogProbs(low, low, low, state.active)
    assert places(Static().commit(logprobs, state=state, sampler=GREEDY)) == [1]


@pytest.mark.parametrize(
    ("rule", "uses"),
    [
        (Static(), False),
        (Static(4), True),
        (Sequential(), False),
        (Sequential(2), True),
        (Threshold(), False),
        (Threshold(steps_per_block=4), True),
        (Threshold(steps_per_block=4, fallback="best"), False),
    ],
)
def test_rules_say_whether_the_step_matters(rule: DecodingRule, uses: bool) -> None:
    """And rightly so: a rule that says no commits the same at every step."""
    assert rule.uses_step is uses
    at_steps = [places(commit(rule, [0.6, 0.5, 0.55, 0.7, 0.5], state_of([False] * 5, step=s))) for s in range(6)]
    assert (len({tuple(p) for p in at_steps}) > 1) is uses


def test_a_rule_decides_each_state_as_if_alone() -> None:
    rows = [[0.9, 0.6, 0.6], [0.6, 0.6, 0.9], [0.5, 0.5, 0.5]]
    states = state_of([False] * 3).map(lambda t: t.unsqueeze(1).expand(1, 3, *t.shape[1:]))
    logprobs = logprobs_of([c for row in rows for c in row], states.active)
    made = Static().commit(logprobs, state=states, sampler=GREEDY)
    assert made.positions[0].nonzero()[:, 1].tolist() == [0, 2, 0]
