from __future__ import annotations

import attrs
import pytest
import torch

from spotkit.logprobs import Sampling
from spotkit.rules import Sequential, Static, Threshold
from spotkit.settings import DecodeConfig
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case, check_exact
from spotkit.testing.drafters import Clairvoyant
from spotkit.testing.targets import TableTarget
from spotkit.tree import assemble
from spotkit.types import Draft, State, TargetSpec

MASK = 5
SPEC = TargetSpec(name="t", vocab_size=8, mask_id=MASK, eos_ids=(), pad_id=0, block_length=3)
Ids = list[int | None]
CURRENT: Ids = [1, None, None, None, None, None]


def states(rows: list[list[Ids]], steps: list[list[int]] | None = None) -> State:
    """States `[B, K]`; None stands for an open position. Blocks of three; the last position does not exist."""
    shape = (len(rows), len(rows[0]))
    return State(
        canvas=torch.tensor([[[MASK if t is None else t for t in c] for c in row] for row in rows]),
        committed=torch.tensor([[[t is not None for t in c] for c in row] for row in rows]),
        step=torch.tensor(steps) if steps else torch.full(shape, 2),
        start=torch.full(shape, 10),
        limit=torch.full(shape, 15),
        row=torch.arange(shape[0]).view(-1, 1).expand(shape),
        block_length=3,
    )


def current(*canvases: Ids) -> State:
    return states([[c] for c in canvases], [[1]] * len(canvases)).map(lambda t: t[:, 0])


def draft(*rows: list[Ids], steps: list[list[int]] | None = None) -> Draft:
    made = states(list(rows), steps)
    return Draft(made, torch.ones_like(made.step, dtype=torch.bool))


def kept(made: Draft, *, budget: int = 9, root: Ids = CURRENT) -> list[Ids]:
    """The candidates that count, after a check of everything that holds of any outcome."""
    state = current(root)
    joined, valid = assemble(state, made, budget=budget, spec=SPEC)
    assert joined.canvas.shape[1] == valid.shape[1] <= budget
    assert torch.equal(joined.canvas[:, 0], state.canvas)
    assert torch.equal(joined.committed[:, 0], state.committed)
    assert bool(joined.canvas[~joined.committed].eq(MASK).all())
    for name in ("start", "limit", "row"):
        assert torch.equal(getattr(joined, name), getattr(state, name).unsqueeze(1).expand(valid.shape))
    pairs = zip(joined.canvas[0].tolist(), joined.committed[0].tolist(), valid[0].tolist(), strict=True)
    return [[t if c else None for t, c in zip(ids, done, strict=True)] for ids, done, good in pairs if good][1:]


GOOD: Ids = [1, 2, None, None, None, None]
BETTER: Ids = [1, 2, 3, None, None, None]


@pytest.mark.parametrize(
    "bad",
    [
        CURRENT,
        [None, 2, None, None, None, None],  # opens what is committed
        [4, 2, None, None, None, None],  # writes another token there
        [1, MASK, None, None, None, None],
        [1, -1, None, None, None, None],
        [1, 8, None, None, None, None],
        [1, 2, None, None, None, 3],  # beyond the end of the row
        [1, 2, 3, 4, 4, None],  # nothing left to decide
        [1, 2, 3, 4, 4, 4],
    ],
)
def test_what_is_no_candidate_is_left_out(bad: Ids) -> None:
    assert kept(draft([bad, GOOD, bad, BETTER])) == [GOOD, BETTER]
    assert kept(draft([bad])) == []


def test_candidates_keep_their_order_and_the_budget_cuts_the_last() -> None:
    many: list[Ids] = [[1, t, None, None, None, None] for t in (4, 0, 3, 2)]
    assert kept(draft(many)) == many
    assert kept(draft(many), budget=3) == many[:2]
    assert kept(draft(many), budget=2) == many[:1]
    assert kept(draft([CURRENT] * 40 + many), budget=3) == many[:2]


def test_repeats_are_left_out_unless_their_steps_differ() -> None:
    assert kept(draft([GOOD, GOOD, BETTER, GOOD], steps=[[2, 2, 3, 2]])) == [GOOD, BETTER]
    assert kept(draft([GOOD, GOOD, GOOD], steps=[[2, 3, 2]])) == [GOOD, GOOD]
    assert kept(draft([GOOD] * 8 + [BETTER], steps=[[2] * 8 + [3]]), budget=3) == [GOOD, BETTER]


def test_negative_step_counts_are_left_out() -> None:
    assert kept(draft([GOOD, BETTER], steps=[[-1, 3]])) == [BETTER]


def test_only_what_is_meant_counts() -> None:
    made = draft([GOOD, BETTER])
    assert kept(attrs.evolve(made, valid=torch.tensor([[False, True]]))) == [BETTER]


def test_candidates_may_reach_into_the_next_block() -> None:
    ahead: list[Ids] = [[1, 2, 3, 4, None, None], [1, 2, None, 4, None, None]]
    assert kept(draft(ahead)) == ahead


def test_rows_have_their_own_candidates() -> None:
    state = current(CURRENT, [None] * 6, [1, 2, 3, 4, 0, None])
    made = draft(
        [GOOD, CURRENT, BETTER], [GOOD, GOOD, GOOD], [GOOD, GOOD, BETTER], steps=[[2, 2, 3], [2, 2, 2], [2, 2, 3]]
    )
    joined, valid = assemble(state, made, budget=8, spec=SPEC)
    assert valid.tolist() == [[True, True, True], [True, True, False], [False, False, False]]
    assert joined.canvas[0, 2].tolist() == [1, 2, 3, MASK, MASK, MASK]
    assert joined.row.tolist() == [[0] * 3, [1] * 3, [2] * 3]


@pytest.mark.parametrize("nothing", [None, Draft(states([[]]).map(lambda t: t), torch.zeros(1, 0, dtype=torch.bool))])
def test_no_draft_leaves_the_current_state(nothing: Draft | None) -> None:
    assert kept(nothing) == []


def test_a_budget_of_one_leaves_the_current_state() -> None:
    assert kept(draft([GOOD, BETTER]), budget=1) == []


def test_what_stands_at_open_positions_is_masked() -> None:
    made = draft([GOOD])
    made.states.canvas[0, 0, 2] = 7
    assert kept(made) == [GOOD]


def stubborn(*, window: int, rule: object, temperature: float, new: int = 12, budget: int = 32) -> Case:
    """A target that says the same in every state."""
    spec = attrs.evolve(SPEC, block_length=4)
    return Case(
        target=TableTarget(spec, seed=3, smooth=1.0),
        prompts=((1, 2, 3, 4),),
        row_ids=(5,),
        rule=rule,
        config=DecodeConfig(max_new_tokens=new, sampling=Sampling(temperature=temperature)),
        budget=budget,
        window=window,
    )


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rule", [Static(), Static(2), Sequential(), Threshold(0.4)])
@pytest.mark.parametrize(("window", "passes"), [(1, 6), (3, 2)])
def test_stale_evidence_that_stays_true_is_accepted_to_the_end(
    window: int, passes: int, rule: object, temperature: float
) -> None:
    """The chain knows the tape and the schedule: after one pass over a window, one more finishes it."""
    case = stubborn(window=window, rule=rule, temperature=temperature)
    result = check_exact(case, FreeDave(), case.plain())
    assert result.stats.passes == passes
    # What would lie behind the last step of a window is not scored.
    assert result.stats.drafted == result.stats.accepted


@pytest.mark.parametrize(("budget", "steps"), [(32, [1, 7, 1, 3]), (4, [1, 4, 4, 3])])
def test_a_window_that_slides_keeps_its_evidence(budget: int, steps: list[int]) -> None:
    """With a budget of 4 the second pass ends in block 2, and what it said of block 2 still serves the third."""
    case = stubborn(window=2, rule=Static(), temperature=1.0, budget=budget)
    result = check_exact(case, FreeDave(), case.plain())
    assert [result.rows[0].pass_of.count(i) for i in range(result.stats.passes)] == steps


@pytest.mark.parametrize("budget", [2, 3, 5, 12])
def test_a_drafter_that_knows_the_answer_takes_the_budget_in_steps(budget: int) -> None:
    case = attrs.evolve(stubborn(window=3, rule=Static(), temperature=1.0, budget=budget))
    case = attrs.evolve(case, target=attrs.evolve(case.target, smooth=0.0))
    plain = case.plain()
    result = check_exact(case, Clairvoyant.of(plain, case.row_ids), plain)
    assert plain.stats.passes == plain.stats.steps == 12
    assert result.stats.passes == 1 + -(-11 // budget)


def test_depth_bounds_the_chain() -> None:
    case = stubborn(window=3, rule=Static(), temperature=0.0)
    result = case.run(FreeDave(depth=2))
    assert [result.rows[0].pass_of.count(i) for i in range(result.stats.passes)] == [1, 3, 3, 3, 2]
