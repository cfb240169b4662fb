"""One pass's decisions on the host: which states were accepted, and which steps that makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs
import torch
from torch import Tensor

from spotkit.errors import NonFiniteLogitsError, StalledError
from spotkit.logprobs import scatter
from spotkit.types import Commit, LogProbs, State, Step


@attrs.frozen(eq=False)
class Walk:
    """One pass's decisions on the host, from a single copy of a few integers per state."""

    links: Tensor
    start: Tensor
    steps_before: Tensor
    open_block: Tensor
    positions: Tensor
    tokens: Tensor
    broken: Tensor
    block_length: int

    @classmethod
    def copy(cls, candidates: State, commit: Commit, links: Tensor, logprobs: LogProbs) -> Walk:
        """Copies what the walk needs from the device."""
        broken = scatter(logprobs.raw[:, 0].isnan(), logprobs.index, False)
        scalars = (links, candidates.start, candidates.step, candidates.open_block)
        packed = torch.cat(
            [torch.stack(scalars, -1), commit.positions.long(), commit.tokens, broken.long()], -1
        ).cpu()
        width = commit.tokens.shape[-1]
        return cls(
            links=packed[..., 0],
            start=packed[..., 1],
            steps_before=packed[..., 2],
            open_block=packed[..., 3],
            positions=packed[..., 4 : 4 + width].bool(),
            tokens=packed[..., 4 + width : 4 + 2 * width],
            broken=packed[..., 4 + 2 * width :].bool(),
            block_length=candidates.block_length,
        )

    def path(self, row: int) -> tuple[int, ...]:
        """The accepted states of one row, from the current one on.

        Raises:
            NonFiniteLogitsError, StalledError: see the classes.
        """
        path: list[int] = []
        k = 0
        links = self.links[row].tolist()
        while k >= 0:
            path.append(k)
            self._check(row, path)
            k = links[k] if links[k] not in path else -1
        return tuple(path)

    def _check(self, row: int, path: Sequence[int]) -> None:
        """Checks the last state of `path`."""
        k = path[-1]
        if bool(self.broken[row, k].any()):
            place = int(self.start[row, k]) + int(self.broken[row, k].long().argmax())
            raise NonFiniteLogitsError(
                f"row {row}, position {place}, step {self._counts(row, path)[-1]}: the target's logits hold "
                "NaN or infinity, or no finite value; check the weights and the dtype (bfloat16 or float32)"
            )
        if not bool(self.positions[row, k].any()):
            raise StalledError(
                f"row {row}, step {self._counts(row, path)[-1]}: the decoding rule committed no position; "
                "a rule must commit at least one active position per step"
            )

    def _counts(self, row: int, path: Sequence[int]) -> list[int]:
        """Steps taken in the open block before each state of `path`.

        Only the current state's own count is a fact: where the count decides nothing, a candidate is
        accepted whatever count it claims.
        """
        blocks = self.open_block[row].tolist()
        counts = [int(self.steps_before[row, path[0]])]
        for k, after in pairwise(path):
            counts.append(0 if blocks[after] > blocks[k] else counts[-1] + 1)
        return counts

    def steps(self, row: int, path: Sequence[int]) -> tuple[Step, ...]:
        """The denoising steps along `path`."""
        steps = []
        for k, count in zip(path, self._counts(row, path), strict=True):
            start = int(self.start[row, k])
            places = self.positions[row, k].nonzero().squeeze(-1).tolist()
            tokens = self.tokens[row, k].tolist()
            steps.append(
                Step(
                    block=start + int(self.open_block[row, k]) * self.block_length,
                    step=count,
                    positions=tuple(start + p for p in places),
                    tokens=tuple(tokens[p] for p in places),
                )
            )
        return tuple(steps)
