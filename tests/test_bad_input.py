"""What cannot be decoded is refused by name and value, before the target has been asked anything."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from spotkit.acceptance import StateEquality
from spotkit.errors import ConfigError
from spotkit.logprobs import Sampling
from spotkit.loop import decode, stream
from spotkit.rules import EntropyBound, Factor, Sequential, Static, Threshold
from spotkit.settings import DecodeConfig, Strategy
from spotkit.strategies.freedave import FreeDave
from spotkit.strategies.self_speculative import SelfSpeculative
from spotkit.tape import Tape
from spotkit.testing.drafters import Nothing
from spotkit.testing.targets import SpyTarget, TableTarget
from spotkit.types import Guarantee, State, TargetSpec

SPEC = TargetSpec(name="t", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=4)
STRATEGY = Strategy(Static(), FreeDave(), StateEquality())


@attrs.frozen
class Loose:
    """An acceptance rule that promises only the distribution."""

    guarantee = Guarantee.EXACT_LAW

    def accept(self, candidates: State, *, successors: State, valid: torch.Tensor, with_step: bool) -> torch.Tensor:
        return StateEquality().accept(candidates, successors=successors, valid=valid, with_step=with_step)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompts": []}, "prompts=[]"),
        ({"prompts": "hello"}, "prompts='hello'"),
        ({"prompts": b"hello"}, "prompts=b'hello'"),
        ({"prompts": None}, "prompts=None"),
        ({"prompts": 3}, "prompts=3"),
        ({"prompts": [1, 2]}, "prompts[0]=1"),
        ({"prompts": ["hello"]}, "prompts[0]='hello'"),
        ({"prompts": [["a", "b"]]}, "prompts[0]=['a', 'b']"),
        ({"prompts": [[1], [1, None]]}, "prompts[1]=[1, None]"),
        ({"prompts": [[1], []]}, "prompts[1]: shape [0]"),
        ({"prompts": [[[1, 3]]]}, "prompts[0]: shape [1, 2]"),
        ({"prompts": torch.tensor([1, 3])}, "prompts[0]: shape []"),
        ({"prompts": [[1.0, 3.5]]}, "prompts[0]: dtype torch.float32"),
        ({"prompts": [[True, False]]}, "prompts[0]: dtype torch.bool"),
        ({"prompts": [[1], [1, 3, 2]]}, "prompts[1][2]=2"),
        ({"prompts": [[1, 6]]}, "prompts[0][1]=6"),
        ({"prompts": [[-1]]}, "prompts[0][0]=-1"),
        ({"prompts": [[2**70]]}, f"prompts[0]=[{2**70}]"),
        ({"prompts": [[1j]]}, "prompts[0]: dtype torch.complex64"),
        ({"row_ids": 5}, "row_ids=5"),
        ({"row_ids": {0}}, "row_ids={0}"),
        ({"row_ids": [1]}, "row_ids=[1]"),
        ({"row_ids": [1, 2, 3]}, "row_ids=[1, 2, 3]"),
        ({"row_ids": [1, 0.5]}, "row_ids=[1, 0.5]"),
        ({"row_ids": [1, -1]}, "row_ids=[1, -1]"),
        ({"row_ids": [1, True]}, "row_ids=[1, True]"),
        ({"row_ids": [1, 2**63]}, f"row_ids=[1, {2**63}]"),
        ({"strategy": FreeDave()}, "strategy=FreeDave(depth=None)"),
        ({"strategy": "freedave"}, "strategy='freedave'"),
        ({"config": {"max_new_tokens": 3}}, "config={'max_new_tokens': 3}"),
        ({"config": 5}, "config=5"),
        (
            {
                "strategy": attrs.evolve(STRATEGY, acceptance=Loose()),
                "config": DecodeConfig(guarantee=Guarantee.EXACT_PATH),
            },
            "guarantee=EXACT_PATH: Loose gives EXACT_LAW",
        ),
    ],
)
def test_a_request_that_cannot_be_decoded(given: dict[str, Any], words: str) -> None:
    spy = SpyTarget(TableTarget(SPEC))
    options = {"strategy": STRATEGY, **given}
    prompts = options.pop("prompts", [[1], [3, 4]])
    for start in (decode, stream):
        with pytest.raises(ConfigError) as error:
            start(spy, prompts, **options)
        assert words in str(error.value)
    assert spy.calls == []


@pytest.mark.parametrize("target", [TableTarget, None, "sdar", object()])
def test_a_target_that_is_none(target: Any) -> None:
    with pytest.raises(ConfigError) as error:
        decode(target, [[1]], strategy=STRATEGY)
    assert f"target={target!r}" in str(error.value)


@pytest.mark.parametrize("promised", [Guarantee.EXACT_PATH, Guarantee.EXACT_LAW, Guarantee.APPROXIMATE])
def test_less_than_promised_may_be_asked_for(promised: Guarantee) -> None:
    result = decode(
        TableTarget(SPEC), [[1]], strategy=STRATEGY, config=DecodeConfig(max_new_tokens=2, guarantee=promised)
    )
    assert result.guarantee is Guarantee.EXACT_PATH


@pytest.mark.parametrize(
    "prompt", [[1, 3], (1, 3), range(3, 4), torch.tensor([1, 3]), torch.tensor([1], dtype=torch.uint8)]
)
def test_prompts_may_be_any_sequence_of_integers(prompt: Any) -> None:
    result = decode(TableTarget(SPEC), [prompt], strategy=STRATEGY, config=DecodeConfig(max_new_tokens=3))
    again = decode(
        TableTarget(SPEC), [list(map(int, prompt))], strategy=STRATEGY, config=DecodeConfig(max_new_tokens=3)
    )
    assert result.same_text(again)
    assert result.stats.new_tokens == 3


def test_text_longer_than_the_target_was_made_for_is_told() -> None:
    target = TableTarget(attrs.evolve(SPEC, max_length=4))
    config = DecodeConfig(max_new_tokens=4)
    with pytest.warns(UserWarning, match="max_new_tokens=4: the longest row may reach 5 tokens; .* was made for 4"):
        long = decode(target, [[1]], strategy=STRATEGY, config=config)
    short = decode(TableTarget(SPEC), [[1]], strategy=STRATEGY, config=config)
    assert long.same_text(short)


BAD_COUNTS = (0, -1, 1.0, True, "3", None)
BAD_NUMBERS = ("1", None, True, float("nan"))


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        *[(DecodeConfig, "max_new_tokens", v) for v in (*BAD_COUNTS, 2**31)],
        *[(DecodeConfig, "seed", v) for v in (-1, 2**63, 1.5, True, "1")],
        *[(DecodeConfig, "keyed_by", v) for v in ("Step", None, 1)],
        *[(DecodeConfig, "sampling", v) for v in (None, 0.7, {"temperature": 1})],
        *[(DecodeConfig, "finish_block", v) for v in (None, 1, "yes")],
        *[(DecodeConfig, "guarantee", v) for v in ("exact", 1)],
        *[(Tape, "seed", v) for v in (-1, 2**63, 1.5, True, None)],
        *[(Tape, "keyed_by", v) for v in ("row", None)],
        *[(Sampling, "temperature", v) for v in (-0.1, float("inf"), *BAD_NUMBERS)],
        *[(Sampling, "top_k", v) for v in (-1, 2.0, None, True)],
        *[(Sampling, "top_p", v) for v in (0, 0.0, -0.5, 1.1, *BAD_NUMBERS)],
        *[(Static, "steps_per_block", v) for v in (0, -1, 2.0, True, "2")],
        *[(Static, "confidence", v) for v in ("Raw", None)],
        *[(Sequential, "steps_per_block", v) for v in (0, 2.5)],
        *[(Threshold, "threshold", v) for v in (-0.1, float("inf"), *BAD_NUMBERS)],
        *[(Threshold, "comparator", v) for v in ("<", "gt", None)],
        *[(Threshold, "fallback", v) for v in ("none", None)],
        *[(Threshold, "steps_per_block", v) for v in (0, -3)],
        *[(Threshold, "confidence", v) for v in ("margin", None)],
        *[(Factor, "factor", v) for v in (-0.1, float("inf"), *BAD_NUMBERS)],
        *[(Factor, "confidence", v) for v in ("Raw", None)],
        *[(EntropyBound, "bound", v) for v in (-0.1, float("inf"), *BAD_NUMBERS)],
        *[(EntropyBound, "measure", v) for v in ("variance", None)],
        *[(SelfSpeculative, "depth", v) for v in (0, -1, 1.5, True, None)],
        *[(FreeDave, "depth", v) for v in (0, -1, 1.5, True)],
    ],
)
def test_an_option_of_no_sense(make: type, field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        make(**{field: value})
    assert f"{field}={value!r}" in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("budget", v) for v in BAD_COUNTS],
        *[("window", v) for v in BAD_COUNTS],
        ("rule", Static),
        ("rule", "static"),
        ("rule", FreeDave()),
        ("rule", None),
        ("drafter", FreeDave),
        ("drafter", Static()),
        ("drafter", None),
        ("acceptance", StateEquality),
        ("acceptance", Nothing()),
        ("acceptance", None),
    ],
)
def test_a_strategy_of_parts_that_do_not_fit(field: str, value: Any) -> None:
    parts = {"rule": Static(), "drafter": FreeDave(), "acceptance": StateEquality()}
    with pytest.raises(ConfigError) as error:
        Strategy(**{**parts, field: value})
    assert f"{field}={value!r}" in str(error.value)


@pytest.mark.parametrize("make", [DecodeConfig, Sampling, Tape, Static, Threshold, Sequential, FreeDave])
def test_an_unknown_option_is_an_error_and_values_stay_as_they_are(make: type) -> None:
    with pytest.raises(TypeError, match="steps"):
        make(steps=3)
    value = make()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(value, attrs.fields(make)[0].name, 1)
