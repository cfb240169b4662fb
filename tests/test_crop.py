"""What a drafter is shown of a canvas, and its guesses put back into the whole."""

from __future__ import annotations

import torch
from hypothesis import event, given
from hypothesis import strategies as st

from spotkit.crop import crop
from spotkit.types import Commit, Draft, Evidence, State, TargetSpec

MASK, V = 5, 7


@st.composite
def pieces(draw):
    """A state whose blocks are full up to an open one, how many blocks to look at, and its spec."""
    length, blocks = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rows = draw(st.integers(1, 3))
    width = length * blocks
    committed = torch.zeros(rows, width, dtype=torch.bool)
    limit = torch.zeros(rows, dtype=torch.int64)
    for row in range(rows):
        full = draw(st.integers(0, blocks - 1))
        committed[row, : full * length] = True
        flags = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        committed[row, full * length : (full + 1) * length] = torch.tensor(flags)
        limit[row] = 10 + draw(st.integers(full + 1, blocks)) * length
    start = torch.full((rows,), 10)
    tokens = torch.arange(width).expand(rows, -1) % MASK
    canvas = tokens.where(committed, torch.tensor(MASK))
    state = State(canvas, committed, torch.zeros_like(start), start, limit, torch.arange(rows), length)
    return state, draw(st.integers(1, blocks + 1))


def evidence_of(state: State) -> Evidence:
    logprobs = torch.arange(state.canvas.numel() * V).view(*state.canvas.shape, V).float()
    return Evidence(logprobs, ~state.committed, state.committed)


@given(case=pieces())
def test_a_piece_begins_with_the_open_block_and_its_drafts_fit_the_whole(case) -> None:
    state, blocks = case
    attention = {"attention": "full", "cache": "none", "block_grid": "prompt"}
    spec = TargetSpec("t", V, MASK, eos_ids=(), pad_id=0, block_length=state.block_length, **attention)
    assert spec.whole_answer
    evidence = evidence_of(state)
    piece = crop(state, evidence, blocks=blocks, spec=spec)
    small = piece.state
    event(f"beyond: {bool((~small.exists).any())}")
    assert small.canvas.shape[1] <= blocks * state.block_length
    for row in range(len(state.step)):
        places = [p for p in small.positions[row].tolist() if p - 10 < state.canvas.shape[1]]
        kept = small.positions[row] - 10 < state.canvas.shape[1]
        index = torch.tensor(places) - 10
        assert torch.equal(small.canvas[row][kept], state.canvas[row][index])
        assert torch.equal(small.active[row][kept], state.active[row][index])
        assert torch.equal(piece.evidence.logprobs[row][kept], evidence.logprobs[row][index])
        assert not piece.evidence.known[row][~kept].any()
        assert set(state.positions[row][state.active[row]].tolist()) <= set(places)
    every = small.active
    whole_every = state.active
    commit = Commit(every, small.positions % MASK)
    child = small.advance(commit).map(lambda t: t.unsqueeze(1))
    back = piece.spread_back(Draft(child, every.any(-1, keepdim=True)), state)
    direct = state.advance(Commit(whole_every, state.positions % MASK))
    for name in ("canvas", "committed", "step", "start", "limit", "row"):
        got = getattr(back.states, name)[:, 0]
        assert torch.equal(got, getattr(direct, name)), name


def test_a_canvas_that_is_small_enough_is_shown_as_it_is() -> None:
    start = torch.tensor([0])
    committed = torch.zeros(1, 4, dtype=torch.bool)
    state = State(torch.full((1, 4), MASK), committed, start, start, start + 4, start, 2)
    spec = TargetSpec("t", V, MASK, eos_ids=(), pad_id=0, block_length=2)
    evidence = evidence_of(state)
    piece = crop(state, evidence, blocks=2, spec=spec)
    assert (piece.state, piece.evidence) == (state, evidence)
    assert piece.begin is None
