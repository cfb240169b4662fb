"""Fast-dLLM v2's block cache against the official loop written out by hand, one row at a time, keys and values dense.

The official cases with this cache are few; here block, span, threshold, prompts and batch vary.
"""

from __future__ import annotations

import functools
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

from spotkit.adapters.block_cached import BlockCached
from spotkit.loading import load
from spotkit.rules import Ordered, Threshold
from spotkit.settings import DecodeConfig
from spotkit.strategies.freedave import FreeDave
from spotkit.testing.cases import Case, check_exact

FOLDER = Path(__file__).parent.parent / "data/conformance/checkpoints/fast_dllm_v2"
MASK = 123
Layers = list[tuple[Tensor, Tensor]]
SIZES = [(8, 4), (8, 2), (12, 3), (16, 8), (16, 16)]


@functools.cache
def target(layout: str, attention: str, length: int, span: int) -> BlockCached:
    """In float64, where no decision is so close that the shape of a pass decides it."""
    made = load(
        FOLDER, dtype="float64", mask_id=MASK, layout=layout, attn_implementation=attention, cache="block",
        block_length=length, span=span,
    )  # fmt: skip
    return attrs.evolve(made, spec=attrs.evolve(made.spec, eos_ids=()))


def joined(left: Layers, right: Layers) -> Layers:
    pairs = zip(left, right, strict=True)
    return [(torch.cat([a[0], b[0]], 2), torch.cat([a[1], b[1]], 2)) for a, b in pairs] if left else right


def run(of: BlockCached, ids: list[int], start: int, before: Layers) -> tuple[Tensor, Layers]:
    """Logits `[n, V]` of `ids` that see each other and all of `before`, and their own keys and values."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(before):
        cache.update(keys, values, layer)
    seen, count = before[0][0].shape[2] if before else 0, len(ids)
    mask = torch.ones(1, 1, count, seen + count, dtype=torch.bool)
    places = torch.arange(start, start + count).unsqueeze(0)
    logits = of.forward(torch.tensor([ids]), mask=mask, positions=places, keep=count, cache=cache)[0]
    return logits, [(layer.keys[:, :, seen:], layer.values[:, :, seen:]) for layer in cache.layers]


def write_part(of: BlockCached, block: list[int], start: int, past: Layers, kept: Layers, at: int, least: float):
    """One denoising step of the part that begins `at`; the tokens it commits, and what is kept of the block."""
    end = at + of.span
    if not kept or block[at] == MASK:
        logits, kept = run(of, block, start, past)
        logits = torch.cat([logits[:1], logits[:-1]])[at:end]
    else:
        rest = [(torch.cat([t[:, :, :at], t[:, :, end:]], 2) for t in pair) for pair in kept]
        logits, _ = run(of, block[at:end], start + at, joined(past, [(k, v) for k, v in rest]))
        logits = torch.cat([logits[:1], logits[:-1]])
    logits[:, MASK] = -torch.inf
    confidence, tokens = logits.softmax(-1).max(-1)
    confidence[torch.tensor(block[at:end]) != MASK] = -torch.inf
    chosen = (confidence > least) | (torch.arange(of.span) == confidence.argmax())
    return {at + i: int(tokens[i]) for i in chosen.nonzero().flatten().tolist()}, kept


@torch.inference_mode()
def by_hand(of: BlockCached, prompt: list[int], blocks: int, least: float) -> list[int]:
    """Prompt, so many more blocks (the one that the prompt begins among them), and the next block's first token."""
    length = of.spec.block_length
    text, past = list(prompt), []
    finished = len(prompt) // length
    for number in range(finished + blocks):
        start = number * length
        if number >= finished:
            block, kept = (text[start:] + [MASK] * length)[:length], []
            for at in range(0, length, of.span):
                while MASK in block[at : at + of.span]:
                    tokens, kept = write_part(of, block, start, past, kept, at, least)
                    block = [tokens.get(i, token) for i, token in enumerate(block)]
            text = text[:start] + block
        logits, clean = run(of, text[start : start + length], start, past)
        past = joined(past, clean)
        if len(text) == start + length:
            logits[-1, MASK] = -torch.inf
            text.append(int(logits[-1].argmax()))
    return text


@pytest.mark.parametrize(("attention", "layout"), [("sdpa", "tree"), ("eager", "batch"), ("sdpa", "batch")])
@settings(max_examples=8)
@given(data=st.data())
def test_rows_are_those_written_by_hand(attention: str, layout: str, data: st.DataObject) -> None:
    of = target(layout, attention, *data.draw(st.sampled_from(SIZES)))
    least = data.draw(st.sampled_from([0.02, 0.05, 0.2, 0.9]))
    numbers = torch.Generator().manual_seed(data.draw(st.integers(0, 10_000)))
    sizes = data.draw(st.lists(st.integers(1, 2 * of.spec.block_length + 1), min_size=1, max_size=3))
    prompts = [torch.randint(118, (n,), generator=numbers).tolist() for n in sizes]
    wanted = [by_hand(of, prompt, data.draw(st.integers(1, 2)), least) for prompt in prompts]
    most = max(len(text) - len(prompt) for text, prompt in zip(wanted, prompts, strict=True))
    rule = Ordered(Threshold(least, fallback="best"), lead=True, span=of.span)
    case = Case(
        of, tuple(map(tuple, prompts)), tuple(range(len(prompts))), rule, DecodeConfig(max_new_tokens=most, seed=0)
    )
    plain = case.plain()
    for prompt, text, row in zip(prompts, wanted, plain.rows, strict=True):
        assert [*prompt, *row.tokens][: len(text)] == text
    check_exact(case, FreeDave(), plain)
