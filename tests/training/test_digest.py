from __future__ import annotations

import dataclasses
import enum
import functools
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import attrs
import pytest
import torch

from spotkit.errors import ConfigError
from spotkit.rules import Ordered, Sequential, Static, Threshold
from spotkit.training.digest import digest
from spotkit.types import TargetSpec

SPEC = TargetSpec(name="t", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=4)


class Plain:
    def __init__(self, level):
        self.level = level


@dataclasses.dataclass
class Data:
    level: object


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


DIFFERENT = [
    Static(), Static(steps_per_block=2), Static(confidence="tempered"), Threshold(), Threshold(threshold=0.5),
    Sequential(), Ordered(Static()), Ordered(Static(), lead=True), Ordered(Sequential()),
    SPEC, attrs.evolve(SPEC, cache="none"), attrs.evolve(SPEC, variant="dual"), attrs.evolve(SPEC, dtype="bfloat16"),
    Plain(1), Plain(2), Plain(Static()), Plain(Threshold()), Plain(torch.float32), Plain(torch.bfloat16),
    Data(1), Data(2), Data(Kind.ONE), Data(Kind.TWO), Data(Plain), Data(Data), Data(len), Data(max),
    torch.zeros(2), torch.zeros(3), torch.ones(2), torch.zeros(2, dtype=torch.int32), torch.zeros(0),
    1, 1.5, True, None, "1", (1,), (1, 1), {1}, {1, 2}, {"a": 1}, {"a": 2}, {"b": 1}, Path("x"), Path("y"),
    functools.partial(max, 1), functools.partial(max, 2), torch.device("cpu"), torch.device("meta"),
    SimpleNamespace(a=1), SimpleNamespace(a=2),
]  # fmt: skip


def test_everything_that_differs_is_told_apart() -> None:
    names = [digest(value) for value in DIFFERENT]
    assert len(set(names)) == len(names) == len({*names})
    assert {len(name) for name in names} == {12}


def test_equal_values_have_one_name() -> None:
    assert digest(Plain(Static()), SPEC) == digest(Plain(Static()), attrs.evolve(SPEC))
    assert digest({1, 2, 3}) == digest({3, 2, 1})
    assert digest({"a": [1]}) == digest(MappingProxyType({"a": (1,)}))
    assert digest(torch.arange(6)[::2]) == digest(torch.tensor([0, 2, 4]))


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be told"):
        digest(Plain(object()))
