"""Drawing tokens: sampling settings and tape together."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from spotkit.logprobs import Sampling
from spotkit.tape import Tape
from spotkit.types import LogProbs, State


@attrs.frozen
class Sampler:
    """Draws a token for every position that has to be decided, the same whoever asks."""

    sampling: Sampling = Sampling()
    tape: Tape = Tape()

    def draw(self, logprobs: LogProbs, *, state: State) -> Tensor:
        """The token `[M]` of each row of `logprobs`, by the Gumbel-max rule; ties to the lowest id."""
        if self.sampling.greedy:
            return logprobs.law.argmax(-1)
        keys = self.keys(state)[logprobs.index]
        # States that stand at the same step share a position's noise: form it once.
        unique, where = torch.unique(keys, return_inverse=True)
        vocabulary = torch.arange(logprobs.law.shape[-1], device=keys.device)
        noise = self.tape.gumbel(unique.unsqueeze(-1), vocabulary, dtype=logprobs.law.dtype)
        return (logprobs.law + noise[where]).argmax(-1)

    def keys(self, state: State, *, later: Tensor | int = 0) -> Tensor:
        """The tape's key of every canvas position `[..., N]`, `later` steps after `state`."""
        return self.tape.keys(
            row=state.row.unsqueeze(-1), position=state.positions, step=state.step.unsqueeze(-1) + later
        )
