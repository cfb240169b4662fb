"""How a target says that it wants to be decoded, and decodes of which nothing more is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkit.build import default_name, strategy
from spotkit.errors import ConfigError, PartError
from spotkit.logprobs import Sampling
from spotkit.loop import decode
from spotkit.presets import GENERAL, Preset, default_preset, presets_of
from spotkit.rules import Sequential, Static, Threshold
from spotkit.settings import DecodeConfig
from spotkit.strategies.confidence_tree import ConfidenceTree
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case, cases
from spotkit.testing.targets import TableTarget
from spotkit.types import TargetSpec

SPEC = TargetSpec("t", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=4)


@attrs.frozen
class Table(TableTarget):
    """A table target that knows how it wants to be decoded."""

    presets: Any = attrs.field(factory=dict)


NOISY = Preset(Sequential(), DecodeConfig(max_new_tokens=6, sampling=Sampling(1.0)), "here")
EAGER = Preset(Threshold(0.3), DecodeConfig(max_new_tokens=7))


def test_a_target_is_decoded_as_its_first_preset_says() -> None:
    table = Table(SPEC, seed=3, presets={"noisy": NOISY, "eager": EAGER})
    assert presets_of(table) == {"noisy": NOISY, "eager": EAGER}
    assert default_preset(table) is NOISY
    made = strategy(target=table)
    assert (made.rule, made.drafter) == (NOISY.rule, ConfidenceTree())
    bare = decode(table, [[0, 1]])
    said = decode(table, [[0, 1]], strategy=made, config=NOISY.config)
    assert bare.same_text(said)
    assert len(bare.rows[0].tokens) == 6
    assert [len(step.positions) for step in bare.rows[0].log] == [1] * len(bare.rows[0].log)
    assert bare.stats.accepted > 0
    other = strategy("freedave", target=table, rule=EAGER.rule)
    assert not decode(table, [[0, 1]], strategy=other, config=EAGER.config).same_text(bare)


def test_a_target_without_presets_is_decoded_greedily_one_position_per_step() -> None:
    plain = TableTarget(SPEC)
    assert presets_of(plain) == GENERAL == presets_of(Table(SPEC))
    assert strategy(target=plain).rule == Static()
    long = decode(plain, [[0, 1]], config=DecodeConfig(max_new_tokens=5))
    assert len(long.rows[0].log) == 5


def test_what_is_named_goes_before_the_preset() -> None:
    table = Table(SPEC, presets={"noisy": NOISY})
    assert strategy(FreeDave(), target=table, rule="static").rule == Static()
    with pytest.raises(ConfigError, match=r"threshold=0\.5: rule=Sequential.* is made already"):
        strategy("freedave", target=table, rule_options={"threshold": 0.5})
    assert default_name(None) == default_name(table) == "confidence_tree"


@pytest.mark.parametrize("known", [None, 5, {"a": Static()}, {1: NOISY}, [NOISY]])
def test_presets_of_wrong_types(known: Any) -> None:
    with pytest.raises(PartError, match="presets="):
        decode(Table(SPEC, presets=known), [[0]])


@pytest.mark.parametrize("fields", [{"rule": "static"}, {"rule": Static}, {"rule": None}, {"config": None}])
def test_a_preset_of_wrong_types(fields: Mapping[str, Any]) -> None:
    with pytest.raises((PartError, ConfigError), match=next(iter(fields))):
        Preset(**{"rule": Static(), **fields})


@given(case=cases(), length=st.integers(1, 9))
def test_an_answer_that_is_one_block(case: Case, length: int) -> None:
    """Of whatever length, as if the target had blocks of just that length."""
    spec = attrs.evolve(case.target.spec, attention="full", cache="none", block_grid="prompt")

    def decoded(**changes: Any) -> Any:
        changed = attrs.evolve(case.target, spec=attrs.evolve(spec, **changes))
        config = attrs.evolve(case.config, max_new_tokens=length)
        return attrs.evolve(case, target=changed, config=config).run(FreeDave())

    whole, block = decoded(block_grid="answer"), decoded(block_length=length)
    assert whole.same_text(block)
    for row, prompt in zip(whole.rows, case.prompts, strict=True):
        assert {step.block for step in row.log} == {len(prompt)}


@pytest.mark.parametrize("kind", [{"attention": "block_causal"}, {"attention": "full", "cache": "approximate"}])
def test_only_a_canvas_of_the_whole_answer_can_be_one_block(kind: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="block_grid='answer'"):
        attrs.evolve(SPEC, block_grid="answer", **kind)
