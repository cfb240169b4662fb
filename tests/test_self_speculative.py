"""The chain of the most confident positions: the same as FreeDave's for one position per step, and its own depth."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given

from spotkit.logprobs import Sampling
from spotkit.rules import Static, Threshold
from spotkit.settings import DecodeConfig
from spotkit.strategies.freedave import FreeDave
from spotkit.strategies.self_speculative import SelfSpeculative
from spotkit.testing.cases import Case, cases, check_exact
from spotkit.testing.targets import TableTarget
from spotkit.types import TargetSpec

SPEC = TargetSpec("t", 7, 2, eos_ids=(), pad_id=0, block_length=6)


@given(case=cases())
def test_with_one_position_per_step_it_is_the_nested_chain(case: Case) -> None:
    case = attrs.evolve(case, rule=Static(), budget=6)
    plain = case.plain()
    own = check_exact(case, SelfSpeculative(depth=3), plain)
    chain = check_exact(case, FreeDave(depth=3), plain)
    assert [(r.stats.passes, r.stats.drafted, r.stats.accepted) for r in own.rows] == [
        (r.stats.passes, r.stats.drafted, r.stats.accepted) for r in chain.rows
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_drafts_as_deep_as_it_is_told(temperature: float) -> None:
    config = DecodeConfig(max_new_tokens=6, sampling=Sampling(temperature))
    case = Case(TableTarget(SPEC, seed=3, smooth=0.95), ((0, 1, 3, 4, 5, 6),), (0,), Static(), config, budget=9)
    plain = case.plain()
    passes = [check_exact(case, SelfSpeculative(depth), plain).stats.passes for depth in (1, 2, 5)]
    assert passes == sorted(passes, reverse=True)
    assert passes[-1] < passes[0] < plain.stats.passes


def test_where_a_rule_commits_several_only_its_own_states_are_accepted() -> None:
    """A rule without a count of steps may jump to any state of the chain."""
    config = DecodeConfig(max_new_tokens=18)
    rule = Threshold(0.4, fallback="best")
    case = Case(TableTarget(SPEC, seed=0, smooth=0.97), ((0,) * 6,), (0,), rule, config, budget=9)
    plain = case.plain()
    assert max(len(step.positions) for step in plain.rows[0].log) > 1
    result = check_exact(case, SelfSpeculative(5), plain)
    assert 0 < result.stats.accepted < result.stats.drafted
