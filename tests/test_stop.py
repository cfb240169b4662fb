from __future__ import annotations

import itertools

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotkit.acceptance import StateEquality
from spotkit.logprobs import Sampling
from spotkit.loop import decode
from spotkit.rules import Sequential, Static, Threshold
from spotkit.settings import DecodeConfig, Strategy
from spotkit.stop import finished, trim
from spotkit.strategies.confidence_tree import ConfidenceTree
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case, cases, check_exact
from spotkit.testing.targets import TableTarget
from spotkit.types import State, TargetSpec

EOS, TEXT, MASK = 1, 3, 9


def is_finished(
    ids: list[int], done: list[bool], *, start: int, prompt_end: int, text_end: int, limit: int, whole_blocks: bool
) -> bool:
    """Of one state, with blocks of three."""
    canvas = torch.tensor([[i if d else MASK for i, d in zip(ids, done, strict=True)]])
    state = State(
        canvas=canvas,
        committed=torch.tensor([done]),
        step=torch.tensor([0]),
        start=torch.tensor([start]),
        limit=torch.tensor([limit]),
        row=torch.tensor([0]),
        block_length=3,
    )
    ends = {"prompt_end": torch.tensor([prompt_end]), "text_end": torch.tensor([text_end])}
    return bool(finished(state, **ends, eos_ids=(EOS, 2), whole_blocks=whole_blocks))


@pytest.mark.parametrize("end", [*range(6), None])
@pytest.mark.parametrize("prompt", [0, 1, 2])
@pytest.mark.parametrize("whole_blocks", [False, True])
def test_finished_at_every_end_and_in_every_order(end: int | None, prompt: int, whole_blocks: bool) -> None:
    """Two blocks, the first begun by the prompt; the end token at each place; all subsets committed."""
    ids = [EOS if i == end else TEXT for i in range(6)]
    for text_end in (4, 5, 6):
        for later in itertools.product([False, True], repeat=6 - prompt):
            done = [True] * prompt + list(later)
            gap = done.index(False) if False in done else 6
            reach = gap // 3 * 3 if whole_blocks else gap
            ended = end is not None and prompt <= end < min(reach, text_end)
            found = is_finished(
                ids,
                done,
                start=12,
                prompt_end=12 + prompt,
                text_end=12 + text_end,
                limit=18,
                whole_blocks=whole_blocks,
            )
            assert found is (ended or reach >= text_end), (done, text_end)


def test_a_row_may_end_before_its_window() -> None:
    how = {"start": 12, "prompt_end": 12, "text_end": 14, "limit": 15}
    assert is_finished([TEXT] * 6, [True] * 2 + [False] * 4, **how, whole_blocks=False)
    assert not is_finished([TEXT] * 6, [True] * 2 + [False] * 4, **how, whole_blocks=True)
    assert is_finished([TEXT] * 6, [True] * 3 + [False] * 3, **how, whole_blocks=True)


def test_an_open_position_is_no_end_whatever_stands_there() -> None:
    """An end token counts once committed, and only when nothing before it is open."""
    how = {"start": 0, "prompt_end": 0, "text_end": 6, "limit": 6, "whole_blocks": False}
    assert not is_finished([TEXT, EOS, TEXT] * 2, [False, True, True] + [False] * 3, **how)
    assert is_finished([TEXT, EOS, TEXT] * 2, [True, True] + [False] * 4, **how)
    assert is_finished([TEXT, 2, TEXT] * 2, [True, True] + [False] * 4, **how)


@pytest.mark.parametrize(
    ("ids", "most", "tokens", "reason"),
    [
        ([10, 11, EOS, 20, 21], 5, (10, 11, EOS), "eos"),
        ([10, 11, EOS, 20, 21], 3, (10, 11, EOS), "eos"),
        ([10, 11, EOS, 20, 21], 2, (10, 11), "length"),
        ([EOS, 10], 1, (EOS,), "eos"),
        ([10, 2, EOS], 3, (10, 2), "eos"),
        ([10, 11], 2, (10, 11), "length"),
        ([10, 11, 12], 2, (10, 11), "length"),
    ],
)
def test_trim(ids: list[int], most: int, tokens: tuple[int, ...], reason: str) -> None:
    assert trim(ids, eos_ids=(EOS, 2), most=most) == (tokens, reason)


@settings(max_examples=settings.default.max_examples // 2)
@given(case=cases(), finish_block=st.booleans())
def test_declaring_a_token_to_be_the_end_cuts_the_text_there(case: Case, finish_block: bool) -> None:
    """At every position of the text, whatever the commit order; the steps up to there are the same."""
    case = attrs.evolve(case, config=attrs.evolve(case.config, finish_block=finish_block))

    def with_ends(*ends: int) -> Case:
        spec = attrs.evolve(case.target.spec, eos_ids=ends)
        return attrs.evolve(case, target=attrs.evolve(case.target, spec=spec))

    endless = with_ends().plain()
    assert {row.finish_reason for row in endless.rows} == {"length"}
    for end in sorted({t for row in endless.rows for t in row.tokens}):
        plain = with_ends(end).plain()
        for cut, row in zip(plain.rows, endless.rows, strict=True):
            expected, reason = trim(row.tokens, eos_ids=(end,), most=case.config.max_new_tokens)
            assert (cut.tokens, cut.finish_reason) == (expected, reason)
            assert cut.log == row.log[: len(cut.log)]
        check_exact(with_ends(end), FreeDave(), plain)


@given(case=cases())
def test_finishing_the_block_does_not_change_the_text(case: Case) -> None:
    early, whole = (
        attrs.evolve(case, config=attrs.evolve(case.config, finish_block=finish)).plain() for finish in (False, True)
    )
    length = case.target.spec.block_length
    for short, long in zip(early.rows, whole.rows, strict=True):
        assert short.tokens == long.tokens
        assert short.log == long.log[: len(short.log)]
        written = {p for step in long.log for p in step.positions}
        blocks = {step.block for step in long.log}
        assert written == {p for b in blocks for p in range(b, b + length) if p >= min(written)}


def test_finishing_the_block_costs_a_tree_as_few_passes_as_a_text_without_end() -> None:
    """The drafter is not told of end tokens that end nothing before the block does."""
    target = TableTarget(TargetSpec("t", 6, 2, eos_ids=(), pad_id=0, block_length=6), seed=4, levels=6, smooth=0.9)
    strategy = Strategy(Static(), ConfidenceTree(), StateEquality(), budget=6)
    config = DecodeConfig(max_new_tokens=6, finish_block=True)
    endless = decode(target, [[0, 1, 3, 4, 5, 0]], strategy=strategy, config=config)
    assert endless.stats.passes < endless.stats.steps == 6
    for end in endless.rows[0].tokens:
        ended = attrs.evolve(target, spec=attrs.evolve(target.spec, eos_ids=(end,)))
        result = decode(ended, [[0, 1, 3, 4, 5, 0]], strategy=strategy, config=config)
        assert result.rows[0].finish_reason == "eos"
        assert (result.rows[0].log, result.stats.passes) == (endless.rows[0].log, endless.stats.passes)


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("grid", ["absolute", "prompt"])
@pytest.mark.parametrize("length", [1, 3, 4])
def test_prompt_length_new_tokens_and_block_length(length: int, grid: str, window: int) -> None:
    """Never a token more than asked; exactly as many without an end token; blocks where the grid has them."""
    spec = TargetSpec(name="t", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=length, block_grid=grid)
    rules = (Static(), Threshold(0.5, steps_per_block=2), Sequential())
    for number, new in enumerate(sorted({1, max(length - 1, 1), length, length + 1, 2 * length - 1, 2 * length})):
        prompts = tuple(tuple([0, 1, 3, 4, 5][i % 5] for i in range(count)) for count in range(1, 2 * length + 1))
        case = Case(
            target=TableTarget(spec, seed=length, levels=4),
            prompts=prompts,
            row_ids=tuple(range(len(prompts))),
            rule=rules[number % 3],
            config=DecodeConfig(new, Sampling(number % 2 * 1.0), finish_block=number % 4 < 2),
            budget=5,
            window=window,
        )
        plain = case.plain()
        check_exact(case, FreeDave(), plain)
        for prompt, row in zip(prompts, plain.rows, strict=True):
            assert len(row.tokens) == row.stats.new_tokens == new
            written = [p for step in row.log for p in step.positions]
            assert len(set(written)) == len(written)
            origin = len(prompt) if grid == "prompt" else 0
            assert all((step.block - origin) % length == 0 for step in row.log)
            assert all(step.block <= p < step.block + length for step in row.log for p in step.positions)
            end = len(prompt) + new
            assert set(range(len(prompt), end)) <= set(written) <= set(range(len(prompt), end + length - 1))


@pytest.mark.parametrize("prompt", [(1,), (1, 1, 1, 1, 1), (2, 0), (0, 1)])
def test_end_and_pad_ids_in_the_prompt_are_text(prompt: tuple[int, ...]) -> None:
    spec = TargetSpec(name="t", vocab_size=6, mask_id=5, eos_ids=(1, 2), pad_id=1, block_length=4)
    case = Case(
        TableTarget(attrs.evolve(spec, eos_ids=()), seed=2), (prompt,), (0,), Static(), DecodeConfig(max_new_tokens=6)
    )
    text = case.plain().rows[0].tokens
    ending = attrs.evolve(case, target=attrs.evolve(case.target, spec=spec)).plain().rows[0]
    assert ending.tokens == trim(text, eos_ids=(1, 2), most=6)[0]
    assert ending.stats.passes > 0
