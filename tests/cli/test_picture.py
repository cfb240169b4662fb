from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spotkit.cli.picture import Piece, draw, shade, tenth, wrap

WORDS = st.text("ab", min_size=1, max_size=6)
PARTS = st.lists(st.tuples(st.sampled_from(["", " "]), WORDS, st.integers(1, 30)), min_size=1, max_size=30)


def made(parts):
    return [Piece(space + word, number) for space, word, number in parts]


@given(PARTS, st.integers(40, 80))
def test_wrapping_keeps_every_token_and_its_pass(parts, width):
    pieces = made(parts)
    lines = list(wrap(pieces, width))
    kept = [(piece.text.lstrip(), piece.number) for line in lines for piece in line]
    assert kept == [(piece.text.lstrip(), piece.number) for piece in pieces]
    for line in lines:
        text = "".join(piece.text for piece in line)
        assert text == text.lstrip()
        assert len(text) <= width or " " not in text


def page(pieces, last, **options):
    out = io.StringIO()
    console = Console(file=out, width=40, **options)
    draw(console, pieces, last)
    return out.getvalue()


def test_without_colour_a_digit_stands_under_each_token():
    pieces = [Piece("Two", 1), Piece(" plus", 10), Piece(" 2", 5), Piece("0", 6)]
    assert page(pieces, 10) == "  Two plus 20\n  0   9    45\n"


def test_tokens_of_one_pass_have_one_colour():
    shown = page([Piece("a", 1), Piece(" b", 1), Piece(" c", 2)], 2, force_terminal=True, color_system="256")
    first, second, third = re.findall(r"\x1b\[30;48;5;(\d+)m", shown)
    assert first == second != third


@pytest.mark.parametrize("last", [1, 2, 7, 100])
def test_shades_and_tenths_run_from_first_to_last(last):
    assert shade(1, last) == "#7ab7ff"
    assert tenth(1, last) == "0"
    if last > 1:
        assert shade(last, last) == ("#fa7a7a" if last % 2 else "#d46868")
        assert len({shade(n, last) for n in range(1, last + 1)}) == last
    if last >= 10:
        assert tenth(last, last) == "9"
