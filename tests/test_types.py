from __future__ import annotations

import pytest
import torch

from spotkit.acceptance import StateEquality, equal_states
from spotkit.errors import ConfigError
from spotkit.types import Commit, Guarantee, State, TargetSpec, concat

MASK = 9


def states(
    *canvases: list[int | None], steps: list[int] | None = None, start: int = 4, limit: int = 10, length: int = 3
) -> State:
    """States `[1, K]`; None stands for an open position."""
    count = len(canvases)
    return State(
        canvas=torch.tensor([[[MASK if t is None else t for t in c] for c in canvases]]),
        committed=torch.tensor([[[t is not None for t in c] for c in canvases]]),
        step=torch.tensor([steps or [0] * count]),
        start=torch.full((1, count), start),
        limit=torch.full((1, count), limit),
        row=torch.zeros(1, count, dtype=torch.long),
        block_length=length,
    )


def test_positions_and_existence() -> None:
    state = states([1, 2, 3, None, None, None], start=4, limit=7)
    assert state.positions.tolist() == [[[4, 5, 6, 7, 8, 9]]]
    assert state.exists.tolist() == [[[True, True, True, False, False, False]]]


@pytest.mark.parametrize(
    ("canvas", "limit", "block", "active"),
    [
        ([None, None, None, None, None, None], 10, 0, [0, 1, 2]),
        ([1, None, 3, None, None, None], 10, 0, [1]),
        ([1, 2, 3, None, None, None], 10, 1, [3, 4, 5]),
        ([1, 2, 3, None, 5, None], 10, 1, [3, 5]),
        ([1, 2, 3, 4, 5, 6], 10, 2, []),
        ([None, 2, 3, 4, 5, 6], 10, 0, [0]),
        ([1, 2, 3, None, None, None], 7, 2, []),
        ([1, 2, None, None, None, None], 7, 0, [2]),
        ([1, 2, 3, None, None, None], 8, 1, [3]),
        ([MASK, 2, 3, None, 5, 6], 10, 1, [3]),
    ],
)
def test_open_block_and_active(canvas: list[int | None], limit: int, block: int, active: list[int]) -> None:
    """A committed position counts as committed whatever id stands there."""
    state = states(canvas, limit=limit)
    assert state.open_block.tolist() == [[block]]
    assert state.active[0, 0].nonzero().squeeze(-1).tolist() == active


@pytest.mark.parametrize(
    ("canvas", "places", "step_after"),
    [
        ([None, None, None, None, None, None], [1], 5),
        ([1, None, 3, None, None, None], [1], 0),
        ([1, 2, 3, None, None, None], [3, 5], 5),
        ([1, 2, 3, None, 5, 6], [3], 0),
        ([1, None, 3, 4, 5, 6], [1], 0),
        ([1, None, None, None, None, None], [], 4),
    ],
)
def test_advance_counts_the_steps_of_the_open_block(
    canvas: list[int | None], places: list[int], step_after: int
) -> None:
    state = states(canvas, steps=[4])
    positions = torch.zeros(1, 1, 6, dtype=torch.bool)
    positions[0, 0, places] = True
    after = state.advance(Commit(positions, torch.full((1, 1, 6), 7)))
    assert after.step.tolist() == [[step_after]]
    expected = [7 if i in places else t for i, t in enumerate(canvas)]
    assert after.canvas.tolist() == states(expected).canvas.tolist()
    assert after.committed.tolist() == states(expected).committed.tolist()
    assert state.canvas.tolist() == states(canvas).canvas.tolist()


def test_spread_and_concat() -> None:
    row = states([1, None, 3], steps=[2]).map(lambda t: t[:, 0])
    joined = concat([row.spread(2), states([4, 5, None], steps=[7])])
    assert joined.canvas.tolist() == [[[1, MASK, 3], [1, MASK, 3], [4, 5, MASK]]]
    assert joined.step.tolist() == [[2, 2, 7]]
    assert joined.limit.tolist() == [[10] * 3]


def test_equal_states() -> None:
    left = states([1, None, 3], [1, None, 3], [1, 2, None], steps=[1, 2, 1])
    right = states([1, None, 3], [1, None, 4], [1, 2, 3], [1, 2, None], steps=[1, 1, 1, 2])
    assert equal_states(left, right, with_step=True).tolist() == [
        [[True, False, False, False], [False, False, False, False], [False, False, False, False]]
    ]
    assert equal_states(left, right, with_step=False).tolist() == [
        [[True, False, False, False], [True, False, False, False], [False, False, False, True]]
    ]


def test_what_stands_at_open_positions_does_not_count() -> None:
    left, right = states([1, None, 3]), states([1, None, 3])
    right.canvas[0, 0, 1] = 5
    assert equal_states(left, right, with_step=True).all()


def test_a_committed_mask_id_is_not_an_open_position() -> None:
    assert not equal_states(states([1, MASK]), states([1, None]), with_step=False).any()


def test_acceptance_links_to_the_first_valid_equal_state() -> None:
    candidates = states([None] * 3, [1, None, None], [1, None, None], [1, 2, None], steps=[0, 1, 1, 2])
    successors = states([1, None, None], [1, 2, None], [1, 3, None], [1, 2, 3], steps=[1, 2, 2, 0])

    def links(valid: list[bool]) -> list[int]:
        return (
            StateEquality()
            .accept(candidates, successors=successors, valid=torch.tensor([valid]), with_step=True)[0]
            .tolist()
        )

    assert links([True, True, True, True]) == [1, 3, -1, -1]
    assert links([True, False, True, True]) == [2, -1, -1, -1]
    assert links([True, True, True, False]) == [1, -1, -1, -1]
    assert links([False, True, True, True]) == [-1, 3, -1, -1]


def test_guarantees_are_ordered() -> None:
    path, law, none = Guarantee.EXACT_PATH, Guarantee.EXACT_LAW, Guarantee.APPROXIMATE
    order = [path, law, none]
    for i, strong in enumerate(order):
        for j, weak in enumerate(order):
            assert strong.covers(weak) is (i <= j)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"block_length": 0}, "block_length=0"),
        ({"block_length": True}, "block_length=True"),
        ({"token_limit": 7}, "token_limit=7"),
        ({"token_limit": 0}, "token_limit=0"),
        ({"mask_id": -1}, "mask_id=-1"),
        ({"attention": "full"}, "block_grid='absolute'"),
        ({"attention": "causal"}, "attention='causal'"),
        ({"block_grid": "Absolute"}, "block_grid='Absolute'"),
        ({"cache": "exactly"}, "cache='exactly'"),
        ({"cache": None}, "cache=None"),
        ({"name": None}, "name=None"),
        ({"mask_id": True}, "mask_id=True"),
        ({"mask_id": None}, "mask_id=None"),
        ({"pad_id": None}, "pad_id=None"),
        ({"pad_id": -1}, "pad_id=-1"),
        ({"eos_ids": 3}, "eos_ids=3"),
        ({"eos_ids": [3]}, "eos_ids=[3]"),
        ({"eos_ids": (2,)}, "eos_ids=(2,)"),
        ({"eos_ids": (6,)}, "eos_ids=(6,)"),
        ({"eos_ids": (3.0,)}, "eos_ids=(3.0,)"),
        ({"token_limit": 3.5}, "token_limit=3.5"),
        ({"fingerprint": 3}, "fingerprint=3"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change: dict[str, object], text: str) -> None:
    fields = {"name": "t", "vocab_size": 6, "mask_id": 2, "eos_ids": (), "pad_id": 0, "block_length": 4}
    assert TargetSpec(**fields).attention == "block_causal"
    with pytest.raises(ConfigError) as error:
        TargetSpec(**{**fields, **change})
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("attention", "cache", "whole"),
    [
        ("full", "none", True),
        ("full", "exact", True),
        ("full", "approximate", False),
        ("block_causal", "exact", False),
        ("block_causal", "none", False),
    ],
)
def test_only_an_approximate_cache_cuts_the_canvas_of_full_attention(attention, cache, whole):
    spec = TargetSpec(
        name="t",
        vocab_size=5,
        mask_id=4,
        eos_ids=(),
        pad_id=0,
        block_length=2,
        block_grid="prompt",
        attention=attention,
        cache=cache,
    )
    assert spec.whole_answer is whole
