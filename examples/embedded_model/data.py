"""Batches for block-diffusion training: a clean copy of each text and two noisy copies of its answer.

The noisy copies hide complementary halves of every block, so each answer token is a target exactly once
per text. A noisy block sees the clean blocks before it and itself; the clean copy is block-causal.
"""

from __future__ import annotations

import functools
import itertools
import random

import attrs
import torch
from corpus import Problem, problem
from torch import Tensor
from transformers import PreTrainedTokenizerFast

BLOCK_LENGTHS = (4, 8, 16, 32)
BLOCK_WEIGHTS = (0.25, 0.25, 0.3, 0.2)
GRID = 32  # every prompt is longer than this, so the noisy copies leave out the first GRID positions
MAX_LENGTH = 160
DIGIT_WEIGHT = 2.0


@attrs.frozen
class Batch:
    """Token ids `[B, S + 2W]`, targets and loss weights for the `2W` noisy positions, and the block length."""

    ids: Tensor
    targets: Tensor
    weights: Tensor
    block_length: int
    length: int


def encode(tokenizer: PreTrainedTokenizerFast, item: Problem) -> tuple[list[int], list[int]]:
    """The ids of a problem's prompt and of its answer, which ends in the stop token."""
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": item.question}], add_generation_prompt=True)[
        "input_ids"
    ]
    answer = tokenizer.encode(item.solution, add_special_tokens=False)
    return prompt, [*answer, tokenizer.eos_token_id]


def batch_of_step(tokenizer: PreTrainedTokenizerFast, *, seed: int, step: int, rows: int) -> Batch:
    """The batch of one step, a pure function of seed and step.

    Texts of one batch have similar lengths: a pool of eight batches is drawn, sorted, and cut.
    """
    pool, place = divmod(step, 8)
    texts = _pool(tokenizer, seed, pool, rows * 8)
    rng = random.Random(f"{seed}/{step}")
    order = list(range(8))
    random.Random(f"{seed}/{pool}").shuffle(order)
    chosen = texts[order[place] * rows : (order[place] + 1) * rows]
    block = rng.choices(BLOCK_LENGTHS, BLOCK_WEIGHTS)[0]
    return _noise(tokenizer, chosen, block, torch.Generator().manual_seed(rng.getrandbits(60)))


@functools.lru_cache(maxsize=1)
def _pool(tokenizer: PreTrainedTokenizerFast, seed: int, pool: int, size: int) -> list[tuple[list[int], list[int]]]:
    rng = random.Random(f"{seed}/pool/{pool}")
    encoded = (encode(tokenizer, problem(rng)) for _ in itertools.count())
    fitting = (t for t in encoded if len(t[0]) >= GRID and len(t[0]) + len(t[1]) <= MAX_LENGTH)
    return sorted(itertools.islice(fitting, size), key=lambda t: len(t[0]) + len(t[1]))


def _noise(tokenizer: PreTrainedTokenizerFast, texts: list, block: int, rng: torch.Generator) -> Batch:
    rows = len(texts)
    length = -(-max(len(p) + len(a) for p, a in texts) // GRID) * GRID
    clean = torch.full((rows, length), tokenizer.pad_token_id)
    answer = torch.zeros(rows, length, dtype=torch.bool)
    for row, (prompt, reply) in enumerate(texts):
        end = len(prompt) + len(reply)
        clean[row, :end] = torch.tensor(prompt + reply)
        answer[row, len(prompt) : -(-end // block) * block] = True  # padding to the end of the last block too
    scores = torch.rand(rows, length, generator=rng).masked_fill(~answer, 2.0).view(rows, -1, block)
    open_ = answer.view(rows, -1, block).sum(-1)
    hidden = (torch.rand(open_.shape, generator=rng) * (open_ + 1)).long()
    ranks = scores.argsort(-1).argsort(-1)
    first = (ranks < hidden.unsqueeze(-1)).view(rows, length)
    second = answer & ~first
    mask = tokenizer.mask_token_id
    noisy = [torch.where(m, mask, clean)[:, GRID:] for m in (first, second)]
    targets = clean[:, GRID:].repeat(1, 2)
    weights = torch.cat([first, second], 1).view(rows, 2, length)[:, :, GRID:].reshape(rows, -1).float()
    weights = weights * torch.where(_digits(tokenizer)[targets], DIGIT_WEIGHT, 1.0)
    return Batch(torch.cat([clean, *noisy], 1), targets, weights, block, length)


@functools.lru_cache(maxsize=1)
def _digits(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    ids = range(len(tokenizer))
    return torch.tensor([tokenizer.decode([i]).strip().isdigit() for i in ids])


@functools.lru_cache(maxsize=64)
def attention(length: int, block: int) -> tuple[Tensor, Tensor]:
    """The training mask `[1, 1, Q, Q]` (True = attend) and the position ids `[1, Q]`, `Q = S + 2W`."""
    window = length - GRID
    positions = torch.cat([torch.arange(length), *[torch.arange(GRID, length)] * 2])
    copy = torch.cat([torch.zeros(length), torch.ones(window), torch.full((window,), 2)]).long()
    blocks = positions // block
    to_clean = (copy == 0) & (blocks[None] < blocks[:, None] + (copy == 0)[:, None])
    own = (copy[:, None] == copy[None]) & (blocks[:, None] == blocks[None])
    return (to_clean | own)[None, None], positions[None]
