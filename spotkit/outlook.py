"""What the stale evidence says about the next steps: the tokens they would commit, and how surely."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from spotkit.capabilities import Confident
from spotkit.logprobs import temper
from spotkit.protocols import DecodingRule
from spotkit.sampler import Sampler
from spotkit.types import Evidence, State

TOP = 32
"""Tokens considered per position under noise (SPOT reads as many)."""
LIMIT = 30.0
"""Log-odds are clamped to this range."""


@attrs.frozen(eq=False)
class Expectation:
    """Per step ahead and canvas position, from evidence alone.

    `D` is 1 when decoding greedily: all steps ahead are then alike. Index 0 is the next step of the open
    block, and the first step of every later block.
    """

    tokens: Tensor
    """The token the noise of that step picks from the stale distribution `[B, D, N]`."""
    logprob: Tensor
    """The log-probability that the rule's confidence would be `[B, D, N]`."""

    @property
    def log_odds(self) -> Tensor:
        """`logprob` as log-odds, clamped `[B, D, N]`."""
        return log_odds(self.logprob)


def log_odds(logprob: Tensor) -> Tensor:
    """Log-odds of log-probabilities, clamped to `LIMIT` on both sides."""
    return (logprob - (-logprob.clamp(max=0.0).expm1()).clamp(min=1e-30).log()).clamp(-LIMIT, LIMIT)


def expect(state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler, depth: int) -> Expectation:
    """What each position would commit at each of the next `depth` steps if the evidence stood.

    Under noise a step's confidence is that of the token which the noise of *that step* picks, and the tape
    tells it beforehand.
    """
    raw = evidence.logprobs
    if sampler.sampling.greedy:
        best = raw.max(-1)
        return Expectation(best.indices.unsqueeze(1), best.values.unsqueeze(1))
    values, ids = raw.topk(min(TOP, raw.shape[-1]), dim=-1)
    block = torch.arange(state.canvas.shape[-1], device=raw.device) // state.block_length
    begun = torch.where(block == state.open_block.unsqueeze(-1), state.step.unsqueeze(-1), 0)
    ahead = torch.arange(depth, device=raw.device).view(1, -1, 1)
    keys = sampler.tape.keys(
        row=state.row.view(-1, 1, 1), position=state.positions.unsqueeze(1), step=begun.unsqueeze(1) + ahead
    )
    noise = sampler.tape.gumbel(keys.unsqueeze(-1), ids.unsqueeze(1), dtype=raw.dtype)
    chosen = (values.unsqueeze(1) / sampler.sampling.divisor + noise).argmax(-1, keepdim=True)
    tokens = ids.unsqueeze(1).expand(-1, depth, -1, -1).gather(-1, chosen).squeeze(-1)
    if sampler.sampling.temperature != 1 and isinstance(rule, Confident) and rule.confidence != "raw":
        values = temper(raw, sampler.sampling).gather(-1, ids)
    return Expectation(tokens, values.unsqueeze(1).expand(-1, depth, -1, -1).gather(-1, chosen).squeeze(-1))
