"""Random decodes, as Hypothesis strategies, and the check that every drafter has to pass on them.

Needs Hypothesis (`pip install spotkit[test]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs
from hypothesis import strategies as st

from spotkit.acceptance import StateEquality
from spotkit.logprobs import Confidence, Sampling
from spotkit.loop import decode
from spotkit.protocols import AcceptanceRule, DecodingRule, Drafter, Target
from spotkit.results import Result, RowResult
from spotkit.rules import EntropyBound, Factor, Sequential, Static, Threshold
from spotkit.settings import DecodeConfig, Strategy
from spotkit.testing.drafters import Nothing
from spotkit.testing.targets import TableTarget
from spotkit.types import TargetSpec

KINDS: tuple[Confidence, ...] = ("raw", "tempered", "filtered")
_ATTENTIONS: tuple[Literal["block_causal", "full"], ...] = ("block_causal", "full")
_GRIDS: tuple[Literal["absolute", "prompt"], ...] = ("absolute", "prompt")


@attrs.frozen
class Case:
    """One decode, its drafter left open."""

    target: Target
    prompts: tuple[tuple[int, ...], ...]
    row_ids: tuple[int, ...]
    rule: DecodingRule
    config: DecodeConfig
    budget: int = 8
    window: int = 1
    acceptance: AcceptanceRule = StateEquality()

    def run(self, drafter: Drafter) -> Result:
        """Decodes with `drafter`."""
        strategy = Strategy(self.rule, drafter, self.acceptance, budget=self.budget, window=self.window)
        return decode(self.target, self.prompts, strategy=strategy, config=self.config, row_ids=self.row_ids)

    def plain(self, rows: Sequence[int] | None = None) -> Result:
        """Decodes some rows (all by default) without drafts, a state per pass and a block per canvas."""
        chosen = range(len(self.prompts)) if rows is None else rows
        return decode(
            self.target,
            [self.prompts[row] for row in chosen],
            strategy=Strategy(self.rule, Nothing(), StateEquality(), budget=1, window=1),
            config=self.config,
            row_ids=[self.row_ids[row] for row in chosen],
        )


def check_exact(case: Case, drafter: Drafter, plain: Result, *, name: str = "") -> Result:
    """Decodes `case` with `drafter` and compares text and commit log with those of the plain decode.

    Raises:
        AssertionError: they differ, or the counts of the result contradict each other.
    """
    result = case.run(drafter)
    for row, (own, reference) in enumerate(zip(result.rows, plain.rows, strict=True)):
        where = f"{name or drafter}, row {row}"
        assert own.tokens == reference.tokens, f"{where}: tokens {own.tokens}, plain {reference.tokens}"
        assert own.log == reference.log, f"{where}: log {own.log}, plain {reference.log}"
        assert own.finish_reason == reference.finish_reason, where
        check_counts(own)
    return result


def check_counts(row: RowResult) -> None:
    """Checks that the counts of a row fit its text and log.

    Raises:
        AssertionError: they do not.
    """
    stats = row.stats
    assert stats.new_tokens == len(row.tokens)
    assert stats.steps == len(row.log) == len(row.pass_of) == stats.passes + stats.accepted
    assert 0 <= stats.accepted <= stats.drafted
    assert list(row.pass_of) == sorted(row.pass_of)


@st.composite
def specs(draw: st.DrawFn) -> TargetSpec:
    """Targets with three to seven ids and blocks of one to five positions, of every kind."""
    vocab = draw(st.integers(3, 7))
    mask = draw(st.integers(0, vocab - 1))
    known = [i for i in range(vocab) if i != mask]
    limited = len(known) > 2 and mask < vocab - 1 and draw(st.booleans())
    attention = draw(st.sampled_from(_ATTENTIONS))
    return TargetSpec(
        name="table",
        vocab_size=vocab,
        mask_id=mask,
        eos_ids=tuple(draw(st.permutations(known))[: draw(st.sampled_from([0, 1, 0, 2]))]),
        pad_id=known[0],
        block_length=draw(st.sampled_from([4, 3, 2, 5, 1])),
        block_grid="prompt" if attention == "full" else draw(st.sampled_from(_GRIDS)),
        attention=attention,
        token_limit=vocab - 1 if limited else None,
    )


@st.composite
def targets(draw: st.DrawFn) -> TableTarget:
    """Table targets, most with few distinct logits so that ties abound."""
    return TableTarget(
        spec=draw(specs()),
        seed=draw(st.integers(0, 10_000)),
        levels=draw(st.sampled_from([1, 2, 3, 5, 0])),
        scale=draw(st.sampled_from([2.0, 6.0, 40.0])),
        smooth=draw(st.sampled_from([0.9, 0.5, 0.0, 1.0])),
        forbidden_on_top=draw(st.booleans()),
    )


def rules() -> st.SearchStrategy[DecodingRule]:
    """The built-in rules with all of their settings."""
    steps = st.none() | st.integers(1, 7)
    kinds = st.sampled_from(KINDS)
    return st.one_of(
        st.builds(Static, steps_per_block=steps, confidence=kinds),
        st.builds(
            Threshold,
            threshold=st.sampled_from([0.0, 0.2, 0.4, 0.5, 0.7, 0.9, 1.0, 1.5]),
            comparator=st.sampled_from([">", ">="]),
            fallback=st.sampled_from(["quota", "best"]),
            steps_per_block=steps,
            confidence=kinds,
        ),
        st.builds(Sequential, steps_per_block=steps),
        st.builds(Factor, factor=st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0]), confidence=kinds),
        st.builds(
            EntropyBound,
            bound=st.sampled_from([0.0, 0.1, 0.35, 1.0, 5.0]),
            confidence=kinds,
            measure=st.sampled_from(["probability", "margin", "entropy"]),
        ),
    )


def samplings() -> st.SearchStrategy[Sampling]:
    """Greedy and noisy, with and without filters."""
    return st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0, 1e-8]),
        top_k=st.sampled_from([0, 0, 1, 2, 3]),
        top_p=st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.1]),
    )


def configs() -> st.SearchStrategy[DecodeConfig]:
    """One to ten new tokens, any sampling."""
    return st.builds(
        DecodeConfig,
        max_new_tokens=st.integers(5, 10) | st.sampled_from([1, 2, 3, 4, 6, 7, 8]),
        sampling=samplings(),
        seed=st.integers(0, 2**63 - 1),
        keyed_by=st.sampled_from(["step", "position"]),
        finish_block=st.booleans(),
    )


# Lists rather than ranges where Hypothesis' liking for the ends of a range would leave little to draft.
@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Whole decodes: one to three prompts of different lengths, any rule and sampling."""
    target = draw(targets())
    ids = [i for i in range(target.spec.vocab_size) if i != target.spec.mask_id]
    rows = draw(st.integers(1, 3))
    prompts = [draw(st.lists(st.sampled_from(ids), min_size=1, max_size=7)) for _ in range(rows)]
    names = st.integers(0, 2**40)
    return Case(
        target=target,
        prompts=tuple(tuple(p) for p in prompts),
        row_ids=tuple(draw(st.lists(names, min_size=rows, max_size=rows, unique=True))),
        rule=draw(rules()),
        config=draw(configs()),
        budget=draw(st.sampled_from([8, 12, 4, 6, 2, 3, 5, 10, 1])),
        window=draw(st.sampled_from([2, 1, 3])),
    )
