"""The demo's picture: a text in which every token shows the pass that committed it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs
from rich.console import Console
from rich.text import Text

from spotkit.cli.targets import text_of
from spotkit.protocols import Target
from spotkit.results import RowResult

_EARLY_TO_LATE = (
    (122, 183, 255),
    (94, 221, 214),
    (150, 228, 120),
    (248, 232, 96),
    (255, 176, 92),
    (250, 122, 122),
)
"""Light shades: black text on them is readable on dark and light terminals alike."""
_DARKER = 0.85
_INDENT = "  "


@attrs.frozen
class Piece:
    """A token's text and the number of the pass that committed it, from 1."""

    text: str
    number: int


Line = tuple[Piece, ...]


def pieces(target: Target, row: RowResult, prompt_length: int) -> tuple[Piece, ...]:
    """The tokens of an answer, those without text left out."""
    numbers = {
        position: number + 1 for step, number in zip(row.log, row.pass_of, strict=True) for position in step.positions
    }
    # A token's text can depend on those before it, so each is what its prefix of the answer adds.
    texts = [text_of(target, row.tokens[:count]) for count in range(len(row.tokens) + 1)]
    return tuple(
        Piece(after.removeprefix(before).replace("\n", " "), numbers[prompt_length + i])
        for i, (before, after) in enumerate(itertools.pairwise(texts))
        if after != before
    )


def wrap(parts: Sequence[Piece], width: int) -> Iterator[Line]:
    """Lines of at most `width` characters, broken at spaces where there are any."""
    words: list[list[Piece]] = []
    for piece in parts:
        if not words or piece.text.startswith(" "):
            words.append([])
        words[-1].append(piece)
    line: list[Piece] = []
    for word in words:
        if line and sum(len(p.text) for p in [*line, *word]) > width:
            yield tuple(line)
            line = []
        if not line:
            word = [attrs.evolve(word[0], text=word[0].text.lstrip(" ")), *word[1:]]
        line.extend(word)
    if line:
        yield tuple(line)


def shade(number: int, last: int) -> str:
    """The colour of a pass, from the first (blue) to pass `last` (red).

    Every other pass is a little darker, so that neighbours in time can be told apart.
    """
    return _blend((number - 1) / max(1, last - 1), light=1 if number % 2 else _DARKER)


def _blend(share: float, *, light: float = 1) -> str:
    """The colour at `share` of the way from early to late."""
    place = share * (len(_EARLY_TO_LATE) - 1)
    left = min(int(place), len(_EARLY_TO_LATE) - 2)
    low, high = _EARLY_TO_LATE[left], _EARLY_TO_LATE[left + 1]
    red, green, blue = (round((a + (b - a) * (place - left)) * light) for a, b in zip(low, high, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def tenth(number: int, last: int) -> str:
    """Where a pass lies between the first (0) and pass `last` (9)."""
    return str(min(9, (number - 1) * 10 // last))


def coloured(console: Console) -> bool:
    """Whether colours can be shown."""
    return console.color_system is not None and not console.no_color


def legend(console: Console, last: int) -> Text:
    """What the colours, or the digits that stand for them, mean."""
    if not coloured(console):
        return Text(f"Digits: when the token was written, 0 = first tenth of {last} passes, 9 = last.")
    bar = Text("pass 1 ")
    width = 32
    for i in range(width):
        bar.append(" ", style=f"on {_blend(i / (width - 1))}")
    return bar.append(f" pass {last}   (one colour = one pass)")


def draw(console: Console, parts: Sequence[Piece], last: int) -> None:
    """Prints an answer, every token marked with its pass."""
    for line in wrap(parts, console.width - len(_INDENT)):
        text, marks = Text(_INDENT), _INDENT
        for piece in line:
            style = f"black on {shade(piece.number, last)}" if coloured(console) else ""
            text.append(piece.text, style=style)
            blank = len(piece.text) - len(piece.text.lstrip(" "))
            marks += (" " * blank + tenth(piece.number, last)).ljust(len(piece.text))
        console.print(text, no_wrap=True, crop=False, overflow="ignore")
        if not coloured(console):
            console.print(marks.rstrip(), no_wrap=True, crop=False, overflow="ignore")
