"""The measurement behind `spotkit demo`: the same problems, decoded by several strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from spotkit import embedded
from spotkit.build import strategy
from spotkit.cli.targets import encode, text_of
from spotkit.errors import ConfigError
from spotkit.loop import decode
from spotkit.protocols import Target
from spotkit.results import RowResult, Stats, total
from spotkit.settings import DecodeConfig, Strategy

BUDGET = 16
MAX_NEW_TOKENS = 192


@attrs.frozen
class Line:
    """One way to decode: a strategy's name, its budget and window."""

    name: str
    window: int = 1

    @property
    def budget(self) -> int:
        """States scored per pass."""
        return 1 if self.name == "plain" else BUDGET

    @property
    def label(self) -> str:
        """The name as the demo shows it."""
        return self.name if self.window == 1 else f"{self.name}, window {self.window}"

    def build(self, target: Target) -> Strategy:
        """The strategy, static rule."""
        return strategy(self.name, target=target, rule="static", budget=self.budget, window=self.window)


LINES = (Line("plain"), Line("freedave"), Line("confidence_tree"), Line("spot"), Line("spot", window=2))


@attrs.frozen
class Measured:
    """What one line did on all problems, and whether it wrote what plain decoding wrote."""

    line: Line
    rows: tuple[RowResult, ...]
    identical: bool

    @property
    def stats(self) -> Stats:
        """Counts over all problems."""
        return total([row.stats for row in self.rows])


@attrs.frozen
class Comparison:
    """All lines, plain decoding first, on the same problems."""

    problems: tuple[embedded.Problem, ...]
    prompt_lengths: tuple[int, ...]
    lines: tuple[Measured, ...]
    right: int
    """Problems whose final answer is right."""

    @property
    def plain(self) -> Measured:
        """The line that the others are measured against."""
        return self.lines[0]

    @property
    def identical(self) -> bool:
        """Whether every line wrote plain decoding's text, in the same steps."""
        return all(measured.identical for measured in self.lines)

    def reduction(self, measured: Measured) -> float:
        """How many times fewer passes than plain decoding."""
        return self.plain.stats.passes / measured.stats.passes

    def fields(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "strategies": [self._fields(measured) for measured in self.lines],
            "identical": self.identical,
            "prompts": len(self.problems),
            "accuracy": self.right / len(self.problems),
        }

    def _fields(self, measured: Measured) -> dict[str, Any]:
        stats = measured.stats
        return {
            "strategy": measured.line.name,
            "budget": measured.line.budget,
            "window": measured.line.window,
            "passes": stats.passes,
            "steps_per_pass": stats.steps_per_pass,
            "pass_reduction": self.reduction(measured),
            "tokens_per_second": stats.tokens_per_second,
            "identical": measured.identical,
        }


def held_out(count: int) -> tuple[embedded.Problem, ...]:
    """The first `count` held-out problems.

    Raises:
        ConfigError: there are not so many.
    """
    problems = embedded.problems()
    if not 1 <= count <= len(problems):
        raise ConfigError(f"problems={count}: give a number from 1 to {len(problems)}")
    return problems[:count]


def compare(
    target: Target,
    problems: Sequence[embedded.Problem],
    *,
    lines: Sequence[Line] = LINES,
    on_decoded: Callable[[], None] = lambda: None,
) -> Comparison:
    """Decodes every problem by every line, one at a time and greedily; calls `on_decoded` after each."""
    prompts = [encode(target, problem.question) for problem in problems]
    measured: list[Measured] = []
    for line in lines:
        chosen = line.build(target)
        # The first passes of a process pay for what is set up once.
        decode(target, prompts[:1], strategy=chosen, config=DecodeConfig(max_new_tokens=4))
        rows = []
        for prompt in prompts:
            config = DecodeConfig(max_new_tokens=MAX_NEW_TOKENS)
            rows.append(decode(target, [prompt], strategy=chosen, config=config).rows[0])
            on_decoded()
        plain = measured[0].rows if measured else rows
        same = all(same_text(a, b) for a, b in zip(plain, rows, strict=True))
        measured.append(Measured(line, tuple(rows), same))
    texts = (text_of(target, row.tokens) for row in measured[0].rows)
    right = sum(embedded.answer_of(text) == p.answer for text, p in zip(texts, problems, strict=True))
    return Comparison(tuple(problems), tuple(map(len, prompts)), tuple(measured), right)


def same_text(one: RowResult, other: RowResult) -> bool:
    """Whether two rows hold the same tokens and took the same steps in the same order."""
    return (one.tokens, one.log) == (other.tokens, other.log)
