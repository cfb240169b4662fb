"""What a decode returns, and the figures it is judged by."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spotkit.types import Event, Guarantee, Step


@attrs.frozen
class Stats:
    """Counts of one row.

    Attributes:
        passes: target passes in which the row was active; spotkit spends none on prefill alone.
        steps: denoising steps taken.
        drafted: candidates scored, the current states not included.
        accepted: candidates that were reached.
        new_tokens: returned tokens, the end token included.
        seconds: wall time of the passes the row was active in (shared with the other rows of the batch).
        draft_seconds: the part of it spent drafting.
    """

    passes: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    new_tokens: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0

    @property
    def steps_per_pass(self) -> float:
        """Mean acceptance length: denoising steps per pass, the mandatory one included."""
        return self.steps / self.passes if self.passes else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """TPF: returned new tokens, through the end token, per pass."""
        return self.new_tokens / self.passes if self.passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Returned new tokens per second of wall time."""
        return self.new_tokens / self.seconds if self.seconds else 0.0


def total(stats: Sequence[Stats]) -> Stats:
    """The sum of several rows' counts."""
    return Stats(**{f.name: sum(getattr(s, f.name) for s in stats) for f in attrs.fields(Stats)})


@attrs.frozen
class RowResult:
    """One row's answer.

    Attributes:
        tokens: new token ids through the first end token.
        finish_reason: `"eos"` or `"length"`.
        log: the denoising steps in order; `pass_of[i]` is the pass that took `log[i]`.
        pass_of: see `log`.
        stats: the row's counts.
    """

    tokens: tuple[int, ...]
    finish_reason: str
    log: tuple[Step, ...]
    pass_of: tuple[int, ...]
    stats: Stats


@attrs.frozen
class Result:
    """All rows of one decode, and what it promises.

    Attributes:
        rows: one per prompt.
        guarantee: what the text is worth, measured against plain decoding of the same target.
        seed: repeats the decode.
        cache: the cache under which the target was run; with an approximate one it is a target of its own.
    """

    rows: tuple[RowResult, ...]
    guarantee: Guarantee
    seed: int
    cache: str

    @property
    def stats(self) -> Stats:
        """Counts summed over rows."""
        return total([r.stats for r in self.rows])

    def same_text(self, other: Result) -> bool:
        """Whether both hold the same tokens *and* took the same denoising steps in the same order."""
        mine = [(r.tokens, r.log) for r in self.rows]
        return mine == [(r.tokens, r.log) for r in other.rows]


@attrs.define
class Collector:
    """Gathers events into results; `add` every event, then take `log` and `stats` of a row."""

    logs: list[list[Step]]
    passes: list[list[int]]
    counts: list[Stats]

    @classmethod
    def of(cls, rows: int) -> Collector:
        """An empty collector for `rows` rows."""
        return cls([[] for _ in range(rows)], [[] for _ in range(rows)], [Stats()] * rows)

    def add(self, event: Event) -> None:
        """Adds what one pass did."""
        drafted = event.valid.sum(-1).tolist()
        for row, steps in enumerate(event.steps):
            if not event.active[row]:
                continue
            self.logs[row].extend(steps)
            self.passes[row].extend([event.index] * len(steps))
            old = self.counts[row]
            self.counts[row] = attrs.evolve(
                old,
                passes=old.passes + 1,
                steps=old.steps + len(steps),
                drafted=old.drafted + drafted[row] - 1,
                accepted=old.accepted + len(event.paths[row]) - 1,
                seconds=old.seconds + event.seconds,
                draft_seconds=old.draft_seconds + event.draft_seconds,
            )
