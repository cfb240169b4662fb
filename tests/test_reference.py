"""The plain decoder against a second one: one row, one position at a time, plain lists.

Both take log-probs and noise from the modules that form them, so that ties are ties for both.
"""

from __future__ import annotations

import math

import attrs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotkit.logprobs import Sampling, normalise
from spotkit.protocols import DecodingRule
from spotkit.rules import EntropyBound, Factor, Sequential, Static, Threshold
from spotkit.tape import Tape
from spotkit.testing.cases import Case, cases
from spotkit.types import Step


def granted(steps: int | None, step: int, length: int) -> int:
    if steps is None:
        return 1
    step = min(step, steps - 1)
    return max(1, length // steps + (1 if step < length % steps else 0))


def choose(rule: DecodingRule, picks: dict[int, tuple[int, float]], step: int, length: int) -> list[int]:
    """The positions that commit, of `picks`: position -> (token, log-prob of it)."""
    ranked = sorted(picks, key=lambda i: (-picks[i][1], i))
    if isinstance(rule, Factor):
        limits = [1 - rule.factor / (n + 1) for n in range(1, len(ranked) + 1)]
        failed = [n for n in range(1, len(ranked)) if math.exp(picks[ranked[n]][1]) < limits[n]]
        return ranked if not failed or failed[0] == len(ranked) - 1 else ranked[: failed[0]]
    count = granted(rule.steps_per_block, step, length)
    if isinstance(rule, Sequential):
        return sorted(picks)[:count]
    if isinstance(rule, Static):
        return ranked[:count]
    passed = [i for i in ranked if math.exp(picks[i][1]) > rule.threshold]
    if rule.fallback == "best":
        return passed or ranked[:1]
    return passed if len(passed) >= count else ranked[:count]


def reference(case: Case, row: int) -> tuple[list[int], list[Step]]:
    """Text and commit log of one row."""
    spec, prompt, config = case.target.spec, case.prompts[row], case.config
    length, end = spec.block_length, len(prompt) + config.max_new_tokens
    first = len(prompt) if spec.block_grid == "prompt" else len(prompt) // length * length
    last = first + math.ceil((end - first) / length) * length
    ids = list(prompt) + [spec.mask_id] * (last - len(prompt))
    done = [True] * len(prompt) + [False] * (last - len(prompt))
    tape = Tape(config.seed, config.keyed_by)
    log: list[Step] = []

    def text() -> list[int]:
        """What stands without a gap, through the first end token."""
        whole = []
        for i in range(len(prompt), end):
            if not done[i] or (whole and whole[-1] in spec.eos_ids):
                break
            whole.append(ids[i])
        return whole

    def over() -> bool:
        return len(text()) == config.max_new_tokens or (text()[-1:] and text()[-1] in spec.eos_ids)

    for begin in range(first, last, length):
        step = 0
        while not all(done[begin : begin + length]):
            head, tail = (first, last) if spec.attention == "full" else (begin, begin + length)
            context = case.target.open([torch.tensor(ids[:head], dtype=torch.long)], max_new_tokens=1)
            logits = case.target.score(torch.tensor([[ids[head:tail]]]), context=context)[0][0, 0]
            picks = {}
            for i in range(begin, begin + length):
                if done[i]:
                    continue
                scores = normalise(logits[i - head], spec)
                key = tape.keys(
                    row=torch.tensor(case.row_ids[row]), position=torch.tensor(i), step=torch.tensor(step)
                )
                noise = tape.gumbel(key, torch.arange(len(scores)), dtype=torch.float64) * config.sampling.temperature
                values = (scores + noise).tolist()
                token = values.index(max(values))
                picks[i] = (token, float(scores[token]))
            chosen = sorted(choose(case.rule, picks, step, length))
            for i in chosen:
                ids[i], done[i] = picks[i][0], True
            log.append(Step(begin, step, tuple(chosen), tuple(ids[i] for i in chosen)))
            step += 1
            if over() and not config.finish_block:
                return text(), log
        if over():
            break
    return text(), log


@st.composite
def simple_cases(draw: st.DrawFn) -> Case:
    """Cases at temperature 0 or 1 without filters, and with thresholds that no quantised probability meets."""
    case = draw(cases())
    sampling = Sampling(temperature=draw(st.sampled_from([0.0, 1.0])))
    rule = case.rule
    if isinstance(rule, Threshold):
        rule = attrs.evolve(rule, threshold=draw(st.sampled_from([0.13, 0.41, 0.61, 0.93])))
    if isinstance(rule, Factor):
        rule = Factor(draw(st.sampled_from([0.37, 0.83, 1.27])))
    if isinstance(rule, EntropyBound):  # needs whole distributions; test_rules.py has its reference
        rule = Static()
    return attrs.evolve(case, rule=rule, config=attrs.evolve(case.config, sampling=sampling))


@settings(max_examples=2 * settings.default.max_examples)
@given(case=simple_cases())
def test_plain_decoder_equals_the_reference(case: Case) -> None:
    for row, result in enumerate(case.plain().rows):
        tokens, log = reference(case, row)
        assert list(result.tokens) == tokens
        assert list(result.log) == log
