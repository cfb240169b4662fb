from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotkit.logprobs import Sampling
from spotkit.sampler import Sampler
from spotkit.tape import LOWEST_NOISE, Tape
from spotkit.testing.cases import Case, cases
from spotkit.testing.drafters import RandomStates
from spotkit.types import LogProbs, State

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
INT64 = st.integers(-(2**63), 2**63 - 1)
DTYPES = st.sampled_from([torch.float32, torch.float64])


def mix(x: int) -> int:
    """SplitMix64's finaliser in plain integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def unmix(y: int) -> int:
    """Undoes `mix`."""
    y ^= (y >> 31) ^ (y >> 62)
    y = y * pow(0x94D049BB133111EB, -1, 2**64) & WORD
    y ^= (y >> 27) ^ (y >> 54)
    y = y * pow(0xBF58476D1CE4E5B9, -1, 2**64) & WORD
    return y ^ (y >> 30) ^ (y >> 60)


def signed(x: int) -> int:
    x &= WORD
    return x - 2**64 if x >= 2**63 else x


def key_of(seed: int, row: int, position: int, step: int) -> int:
    key = mix(seed + GOLDEN & WORD)
    for part in (row, position, step + 1):
        key = mix(key + part * GOLDEN & WORD)
    return key


def test_the_tests_own_generator_gives_the_published_numbers() -> None:
    """The first numbers of SplitMix64 seeded with 1234567, as its authors' C code prints them."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix(1234567 + i * GOLDEN & WORD) for i in range(1, 5)] == published
    assert all(unmix(mix(x)) == x for x in (0, 1, 12345, WORD, GOLDEN))


@given(seed=st.integers(0, 2**63 - 1), row=INT64, position=st.integers(0, 2**40), step=st.integers(0, 2**40))
def test_keys_are_splitmix64(seed: int, row: int, position: int, step: int) -> None:
    place = {"row": torch.tensor(row), "position": torch.tensor(position), "step": torch.tensor(step)}
    assert int(Tape(seed).keys(**place)) == signed(key_of(seed, row, position, step))
    assert int(Tape(seed, "position").keys(**place)) == signed(key_of(seed, row, position, -1))


@given(bits=st.integers(0, 2**53 - 1), low=st.integers(0, 2**11 - 1), token=st.integers(0, 200_000), dtype=DTYPES)
def test_gumbel_is_the_right_function_of_its_bits(bits: int, low: int, token: int, dtype: torch.dtype) -> None:
    check_gumbel(bits, low, token, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [0, 1, 2, 2**29 + 1, 2**52, 2**53 - 2**28, 2**53 - 2, 2**53 - 1])
def test_gumbel_at_the_ends(bits: int, dtype: torch.dtype) -> None:
    check_gumbel(bits, 0, 0, dtype)


def check_gumbel(bits: int, low: int, token: int, dtype: torch.dtype) -> None:
    key = torch.tensor(signed(unmix(bits << 11 | low) - (token + 1) * GOLDEN))
    noise = float(Tape().gumbel(key, torch.tensor(token), dtype=dtype))
    uniform = min((bits + 0.5) / 2**53, 1 - torch.finfo(dtype).eps)
    right = -math.log(-math.log1p(-uniform))
    assert math.isfinite(noise)
    # Near one, float32 uniforms are 2**-24 apart: what an exponential variate of 15 cannot resolve.
    slack = 1e-13 if dtype == torch.float64 else 4e-6 + 2.0**-24 / (1 - uniform)
    assert noise == pytest.approx(right, abs=slack * 4, rel=1e-5 if dtype == torch.float32 else 1e-12)
    assert noise >= LOWEST_NOISE - 1e-5 or dtype == torch.float64


@given(
    seed=st.integers(0, 2**63 - 1),
    count=st.integers(1, 40),
    tokens=st.integers(1, 300),
    dtype=DTYPES,
    keyed_by=st.sampled_from(["step", "position"]),
    data=st.data(),
)
def test_noise_does_not_depend_on_what_is_asked_with_it(
    seed: int, count: int, tokens: int, dtype: torch.dtype, keyed_by: str, data: st.DataObject
) -> None:
    """Bit for bit the same alone, in another order, or in a slice."""
    tape = Tape(seed, keyed_by)
    rows, places, steps = (torch.arange(count) % n for n in (3, 7, 5))
    keys = tape.keys(row=rows, position=places, step=steps)
    noise = tape.gumbel(keys.unsqueeze(-1), torch.arange(tokens), dtype=dtype)
    order = torch.tensor(data.draw(st.permutations(range(count))))
    again = tape.keys(row=rows[order], position=places[order], step=steps[order])
    assert torch.equal(tape.gumbel(again.unsqueeze(-1), torch.arange(tokens), dtype=dtype), noise[order])
    i, t = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, tokens - 1))
    alone = tape.keys(row=rows[i], position=places[i], step=steps[i])
    assert torch.equal(tape.gumbel(alone, torch.tensor(t), dtype=dtype), noise[i, t])


def test_each_part_of_the_key_matters() -> None:
    def noise(
        seed: int = 1, row: int = 2, position: int = 3, step: int = 4, token: int = 5, by: str = "step"
    ) -> float:
        tape = Tape(seed, by)
        key = tape.keys(row=torch.tensor(row), position=torch.tensor(position), step=torch.tensor(step))
        return float(tape.gumbel(key, torch.tensor(token), dtype=torch.float64))

    changes = ({"seed": 2}, {"row": 3}, {"position": 4}, {"step": 5}, {"token": 6}, {"row": 3, "position": 2})
    values = [noise(), *(noise(**change) for change in changes)]
    assert len(set(values)) == len(values)
    assert noise(step=4, by="position") == noise(step=9, by="position")
    assert noise(position=4, by="position") != noise(by="position")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments(dtype: torch.dtype) -> None:
    """Mean and variance of a standard Gumbel, over tokens and over keys."""
    tape, size = Tape(3), 400_000
    many = tape.keys(row=torch.tensor(0), position=torch.arange(size), step=torch.tensor(0))
    for noise in (
        tape.gumbel(many[:1], torch.arange(size), dtype=dtype),
        tape.gumbel(many, torch.tensor(0), dtype=dtype),
    ):
        assert bool(noise.isfinite().all())
        assert abs(float(noise.double().mean()) - 0.57721566) < 4 * math.sqrt(math.pi**2 / 6 / size)
        assert float(noise.double().var()) == pytest.approx(math.pi**2 / 6, rel=0.015)


def test_upper_tail_over_a_large_vocabulary() -> None:
    """P(max over V tokens > x) = 1 - exp(-V exp(-x)): where float32 uniforms near one would fail."""
    tape, vocabulary, trials = Tape(11), 151_936, 200
    keys = tape.keys(row=torch.tensor(0), position=torch.arange(trials), step=torch.tensor(0))
    best = torch.tensor([float(tape.gumbel(key, torch.arange(vocabulary)).max()) for key in keys])
    for quantile in (0.1, 0.5, 0.9):
        bound = math.log(vocabulary) - math.log(-math.log(quantile))
        spread = math.sqrt(quantile * (1 - quantile) / trials)
        assert abs(float((best <= bound).double().mean()) - quantile) < 3.5 * spread
    assert len(best.unique()) == trials  # no two maxima alike: the tail is dense


def test_no_correlation_between_neighbours() -> None:
    tape, size = Tape(5), 300
    grid = torch.arange(size)
    keys = tape.keys(row=torch.tensor(0), position=grid.unsqueeze(1), step=grid)
    noise = tape.gumbel(keys.unsqueeze(-1), torch.arange(4), dtype=torch.float64) - 0.57721566
    for shifted in (noise[1:] * noise[:-1], noise[:, 1:] * noise[:, :-1], noise[..., 1:] * noise[..., :-1]):
        assert abs(float(shifted.mean())) < 4 * (math.pi**2 / 6) / math.sqrt(shifted.numel())


@settings(max_examples=8)
@given(case=cases())
def test_decoding_leaves_the_global_generator_alone(case: Case) -> None:
    before = torch.get_rng_state()
    case.run(RandomStates())
    assert torch.equal(torch.get_rng_state(), before)


def make_state(steps: list[int]) -> State:
    count = len(steps)
    canvas = torch.full((1, count, 2), 3)
    return State(
        canvas=canvas,
        committed=torch.zeros_like(canvas, dtype=torch.bool),
        step=torch.tensor([steps]),
        start=torch.full((1, count), 10),
        limit=torch.full((1, count), 12),
        row=torch.full((1, count), 8),
        block_length=2,
    )


def test_a_draw_is_the_largest_sum_of_log_prob_and_noise() -> None:
    """States at the same step share noise; others do not; equal sums go to the lower id."""
    state = make_state([0, 1, 0])
    law = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).log().expand(6, 3)
    logprobs = LogProbs(law, law, law, torch.ones(1, 3, 2, dtype=torch.bool))
    tape = Tape(21)
    drawn = Sampler(Sampling(1.0), tape).draw(logprobs, state=state)
    expected = []
    for step in (0, 1, 0):
        for position in (10, 11):
            key = tape.keys(row=torch.tensor(8), position=torch.tensor(position), step=torch.tensor(step))
            sums = law[0] + tape.gumbel(key, torch.arange(3), dtype=torch.float64)
            expected.append(int(sums.argmax()))
    assert drawn.tolist() == expected
    assert Sampler(Sampling(0.0), tape).draw(flat(logprobs), state=state).tolist() == [0] * 6


def flat(logprobs: LogProbs) -> LogProbs:
    """The same positions with equal log-probs everywhere."""
    law = torch.full_like(logprobs.law, -math.log(3))
    return LogProbs(law, law, law, logprobs.index)


def test_later_keys_are_those_of_later_steps() -> None:
    sampler = Sampler(Sampling(1.0), Tape(4))
    assert torch.equal(sampler.keys(make_state([2]), later=3), sampler.keys(make_state([5])))
