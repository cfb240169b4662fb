"""The embedded model's corpus and training batches."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = Path(__file__).parents[2] / "examples" / "embedded_model"
sys.path.insert(0, str(EXAMPLE))

import data  # noqa: E402
from corpus import answer_of, problems  # noqa: E402
from tokenizer import train_tokenizer  # noqa: E402

OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(0, sample=2000)


@given(seed=st.integers(0, 2**32))
def test_solutions_are_right(seed: int) -> None:
    """Every equation holds, each starts from the last result, and the answer is the last one."""
    for item in itertools.islice(problems(seed), 5):
        equations = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", item.solution)
        assert len(equations) >= 2
        results = [int(result) for *_, result in equations]
        for left, sign, right, result in equations:
            assert OPERATIONS[sign](int(left), int(right)) == int(result)
        assert all(int(e[0]) == before for e, before in zip(equations[1:], results, strict=False))
        assert answer_of(item.solution) == item.answer == results[-1]
        assert 0 <= item.answer <= 99


@given(seed=st.integers(0, 2**32))
def test_problems_follow_from_the_seed(seed: int) -> None:
    first, again = (list(itertools.islice(problems(seed), 3)) for _ in range(2))
    assert first == again
    assert first != list(itertools.islice(problems(seed + 1), 3))


def test_tokenizer_keeps_text_and_splits_digits(tokenizer) -> None:
    for item in itertools.islice(problems(1), 50):
        for text in (item.question, item.solution):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text
            assert all(len(re.findall(r"\d", tokenizer.decode([i]))) <= 1 for i in ids)


@pytest.mark.parametrize("step", range(6))
def test_noisy_copies_hide_complementary_halves(tokenizer, step: int) -> None:
    """Each answer token is a target once; hidden positions hold the mask, all others the clean token."""
    batch = data.batch_of_step(tokenizer, seed=0, step=step, rows=3)
    window = batch.length - data.GRID
    clean = batch.ids[:, : batch.length]
    copies = batch.ids[:, batch.length :].view(3, 2, window)
    hidden = copies == tokenizer.mask_token_id
    assert not (hidden[:, 0] & hidden[:, 1]).any()
    assert torch.equal(hidden.flatten(1), batch.weights > 0)
    assert torch.equal(batch.targets.view(3, 2, window)[:, 0], clean[:, data.GRID :])
    assert torch.where(hidden, clean[:, None, data.GRID :], copies).eq(clean[:, None, data.GRID :]).all()
    ends = (clean == tokenizer.eos_token_id).nonzero()
    last = {int(r): int(c) for r, c in ends}
    for row in range(3):
        covered = hidden[row].any(0)
        assert bool(covered[last[row] - data.GRID])


@pytest.mark.parametrize("block", data.BLOCK_LENGTHS)
def test_training_mask_is_the_decoders_view(block: int) -> None:
    """A noisy block sees the clean text before it and itself, as the block being decoded does."""
    length = 96
    mask, positions = data.attention(length, block)
    window = length - data.GRID
    for query in (0, 31, 40, length + 5, length + window + 17):
        at = int(positions[0, query])
        copy = 0 if query < length else 1 + (query - length) // window
        begin = at // block * block
        seen = mask[0, 0, query].nonzero().squeeze(-1).tolist()
        if copy == 0:
            expected = list(range(begin + block))
        else:
            offset = length + (copy - 1) * window - data.GRID
            expected = list(range(begin)) + [offset + p for p in range(begin, begin + block)]
        assert seen == expected
