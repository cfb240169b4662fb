from __future__ import annotations

import math

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotkit.logprobs import Sampling, form, normalise, scatter
from spotkit.rules import Sequential
from spotkit.strategies.confidence_tree import ConfidenceTree
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case, cases
from spotkit.types import LogProbs, TargetSpec

SPEC = TargetSpec(name="t", vocab_size=6, mask_id=2, eos_ids=(), pad_id=0, block_length=4)
INF, NAN = math.inf, math.nan
VALUES = st.sampled_from([-30.0, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
ROWS = st.lists(st.lists(VALUES, min_size=6, max_size=6), min_size=1, max_size=5)


def formed(
    logits: list[list[float]], spec: TargetSpec = SPEC, dtype: torch.dtype = torch.float64, **how: float
) -> LogProbs:
    tensor = torch.tensor(logits, dtype=dtype)
    index = torch.ones(1, len(logits), dtype=torch.bool)
    return form(tensor, index=index, sampling=Sampling(**how), spec=spec)


@given(rows=ROWS)
def test_log_probs_are_the_softmax_over_allowed_ids(rows: list[list[float]]) -> None:
    raw = normalise(torch.tensor(rows, dtype=torch.float64), attrs.evolve(SPEC, token_limit=5))
    for row, own in zip(rows, raw.tolist(), strict=True):
        total = sum(math.exp(row[t]) for t in (0, 1, 3, 4))
        assert own[2] == own[5] == -INF
        for t in (0, 1, 3, 4):
            assert own[t] == pytest.approx(row[t] - math.log(total), abs=1e-12)


@given(case=cases())
def test_forbidden_ids_are_never_written(case: Case) -> None:
    """Although they have by far the highest logits."""
    case = attrs.evolve(case, target=attrs.evolve(case.target, forbidden_on_top=True))
    spec = case.target.spec
    for row in case.plain().rows:
        written = [t for step in row.log for t in step.tokens]
        assert spec.mask_id not in written
        assert max(written) < (spec.token_limit or spec.vocab_size)


@given(rows=ROWS, shift=st.sampled_from([-1e4, 1e2, 1e3]), temperature=st.sampled_from([0.3, 1.0, 2.0]))
def test_a_constant_added_to_the_logits_changes_nothing(
    rows: list[list[float]], shift: float, temperature: float
) -> None:
    plain = formed(rows, temperature=temperature, top_k=3, top_p=0.95)
    moved = formed([[x + shift for x in row] for row in rows], temperature=temperature, top_k=3, top_p=0.95)
    for name in ("raw", "tempered", "law"):
        torch.testing.assert_close(getattr(moved, name), getattr(plain, name), rtol=0, atol=1e-9)


def filtered(probabilities: list[float], **how: float) -> list[float]:
    """The law over ids 0, 1, 3, 4, 5 that have these probabilities."""
    logits = [math.log(p) if p else -INF for p in probabilities]
    law = formed([[*logits[:2], 9.0, *logits[2:]]], temperature=1.0, **how).law[0].exp().tolist()
    return [round(law[t], 9) for t in (0, 1, 3, 4, 5)]


@pytest.mark.parametrize(
    ("probabilities", "how", "law"),
    [
        ([0.1, 0.4, 0.1, 0.2, 0.2], {"top_k": 1}, [0, 1, 0, 0, 0]),
        ([0.1, 0.3, 0.1, 0.3, 0.2], {"top_k": 2}, [0, 0.5, 0, 0.5, 0]),
        ([0.2, 0.2, 0.2, 0.2, 0.2], {"top_k": 2}, [0.5, 0.5, 0, 0, 0]),
        ([0.1, 0.2, 0.3, 0.2, 0.2], {"top_k": 3}, [0, 2 / 7, 3 / 7, 2 / 7, 0]),
        ([0.1, 0.2, 0.3, 0.2, 0.2], {"top_k": 99}, [0.1, 0.2, 0.3, 0.2, 0.2]),
        ([0.5, 0.25, 0.125, 0.125, 0.0], {"top_p": 0.5}, [1, 0, 0, 0, 0]),
        ([0.5, 0.25, 0.125, 0.125, 0.0], {"top_p": 0.51}, [2 / 3, 1 / 3, 0, 0, 0]),
        ([0.5, 0.25, 0.125, 0.125, 0.0], {"top_p": 0.8}, [4 / 7, 2 / 7, 1 / 7, 0, 0]),
        ([0.125, 0.125, 0.5, 0.25, 0.0], {"top_p": 0.8}, [1 / 7, 0, 4 / 7, 2 / 7, 0]),
        ([0.25, 0.25, 0.25, 0.25, 0.0], {"top_p": 0.3}, [0.5, 0.5, 0, 0, 0]),
        ([0.4, 0.3, 0.2, 0.1, 0.0], {"top_p": 1e-9}, [1, 0, 0, 0, 0]),
        # Top-k first: 0.5 and 0.25 are then 2/3 and 1/3, and 0.6 is reached with the first.
        ([0.5, 0.25, 0.125, 0.125, 0.0], {"top_k": 2, "top_p": 0.6}, [1, 0, 0, 0, 0]),
    ],
)
def test_filters(probabilities: list[float], how: dict[str, float], law: list[float]) -> None:
    assert filtered(probabilities, **how) == pytest.approx(law, abs=1e-9)


def test_temperature_comes_before_top_p() -> None:
    """At temperature 2 the probabilities 0.8 and 0.2 become 2/3 and 1/3."""
    logits = [[math.log(0.8), math.log(0.2), 0.0, -INF, -INF, -INF]]
    assert formed(logits, temperature=1.0, top_p=0.7).law[0].exp().tolist()[:2] == pytest.approx([1, 0])
    assert formed(logits, temperature=2.0, top_p=0.7).law[0].exp().tolist()[:2] == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-30, 1e-45, 1e-300])
def test_cold_draws_take_the_best_token(dtype: torch.dtype, temperature: float) -> None:
    """With equals at the top, both keep half of the law; nothing overflows to NaN."""
    logits = [[3.0, -1.0, 99.0, 3.0, 2.5, -1e4], [-4.0, 70.0, 0.0, 1.0, 2.0, 3.0]]
    made = formed(logits, dtype=dtype, temperature=temperature)
    assert made.law.exp().tolist() == [pytest.approx([0.5, 0, 0, 0.5, 0, 0]), pytest.approx([0, 1, 0, 0, 0, 0])]
    assert made.law.dtype == torch.promote_types(dtype, torch.float32)
    assert Sampling(temperature=-0.0).greedy
    assert not Sampling(temperature=temperature).greedy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300])
def test_hot_draws_are_even(dtype: torch.dtype, temperature: float) -> None:
    made = formed([[3.0, -1.0, 99.0, 3.0, 2.5, -INF]], dtype=dtype, temperature=temperature)
    assert made.law.exp().tolist() == [pytest.approx([0.25, 0.25, 0, 0.25, 0.25, 0])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("top_p", [1e-30, 1e-46, 5e-324])
def test_the_best_token_stays_however_small_top_p_is(dtype: torch.dtype, top_p: float) -> None:
    made = formed([[3.0, -1.0, 99.0, 3.5, 2.5, -INF]], dtype=dtype, temperature=1.0, top_p=top_p)
    assert made.law.exp().tolist() == [[0, 0, 0, 1, 0, 0]]


@given(case=cases(), temperature=st.sampled_from([1e-300, 1e-20, 1e20, 1e300]))
def test_extreme_temperatures_draft_as_they_decode(case: Case, temperature: float) -> None:
    case = attrs.evolve(case, config=attrs.evolve(case.config, sampling=Sampling(temperature=temperature)))
    for drafter in (FreeDave(), ConfidenceTree()):
        assert case.run(drafter).same_text(case.plain())


def test_greedy_ignores_the_filters() -> None:
    made = formed([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]], temperature=0.0, top_k=1, top_p=0.1)
    assert made.law is made.raw
    assert made.tempered is made.raw
    assert int(made.law.isfinite().sum()) == 5


@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize("bad", [[NAN], [INF], [INF, NAN], [INF, -INF], "all minus infinity", "only the mask id"])
def test_rows_without_a_law_are_nan_throughout(bad: list[float] | str, width: int) -> None:
    spec = attrs.evolve(SPEC, vocab_size=width, mask_id=1)
    logits = torch.zeros(3, width)
    if isinstance(bad, str):
        logits[1] = -INF
        logits[1, 1] = 5.0 if bad == "only the mask id" else -INF
    else:
        for value, place in zip(bad, (width - 1, 0), strict=False):
            logits[1, place] = value
    for how in (Sampling(), Sampling(0.5), Sampling(1.0, top_k=2, top_p=0.5)):
        made = form(logits, index=torch.ones(1, 3, dtype=torch.bool), sampling=how, spec=spec)
        assert bool(made.raw[1].isnan().all())
        assert not bool(made.raw[[0, 2]].isnan().any())
        assert not bool(made.law[[0, 2]].isnan().any())


@pytest.mark.parametrize("value", [NAN, INF])
def test_what_the_target_says_of_the_mask_id_does_not_count(value: float) -> None:
    made = formed([[0.0, 0.0, value, 0.0, 0.0, 0.0]], temperature=1.0)
    assert made.law[0].exp().tolist() == pytest.approx([0.2, 0.2, 0, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", [Sampling(), Sampling(0.7), Sampling(0.7, top_k=50, top_p=0.9)])
def test_a_row_gets_the_same_bits_alone(dtype: torch.dtype, how: Sampling) -> None:
    """At a real vocabulary and with several threads, where a sum over one row may be split."""
    threads = torch.get_num_threads()
    spec = attrs.evolve(SPEC, vocab_size=151_936)
    logits = (torch.randn(5, 151_936, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    torch.set_num_threads(2)
    try:
        every = form(logits, index=torch.ones(1, 5, dtype=torch.bool), sampling=how, spec=spec)
        alone = [
            form(logits[i : i + 1], index=torch.ones(1, 1, dtype=torch.bool), sampling=how, spec=spec)
            for i in range(5)
        ]
    finally:
        torch.set_num_threads(threads)
    for name in ("raw", "tempered", "law"):
        assert torch.equal(getattr(every, name), torch.cat([getattr(one, name) for one in alone]))


def test_scatter_puts_values_where_the_index_is_true() -> None:
    index = torch.tensor([[True, False, True], [False, True, False]])
    assert scatter(torch.tensor([5, 6, 7]), index, -1).tolist() == [[5, -1, 6], [-1, 7, -1]]


@given(case=cases(), seeds=st.tuples(st.integers(0, 99), st.integers(100, 199)))
def test_greedy_ignores_the_seed(case: Case, seeds: tuple[int, int]) -> None:
    texts = []
    for seed in seeds:
        config = attrs.evolve(case.config, sampling=Sampling(0.0), seed=seed)
        texts.append(attrs.evolve(case, config=config).plain())
    assert texts[0].same_text(texts[1])


def test_seeds_matter_when_sampling() -> None:
    from spotkit.settings import DecodeConfig
    from spotkit.testing.targets import TableTarget

    def text(seed: int | None) -> tuple[int, ...]:
        case = Case(
            TableTarget(SPEC, scale=1.0), ((0,),), (0,), Sequential(), DecodeConfig(40, Sampling(1.0), seed=seed)
        )
        result = case.plain()
        again = attrs.evolve(case, config=attrs.evolve(case.config, seed=result.seed)).plain()
        assert again.same_text(result)
        return result.rows[0].tokens

    assert text(1) != text(2)
    assert text(None) != text(None)
