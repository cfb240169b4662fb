"""One pass's decisions on the host: which states were accepted, and which steps that makes."""

from __future__ import annotations

from collections.abc import Sequence

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
        path, k = [], 0
        links = self.links[row].tolist()
        while k >= 0:
            self._check(row, k)
            path.append(k)
            k = links[k] if links[k] not in path else -1
        return tuple(path)

    def _check(self, row: int, k: int) -> None:
        if bool(self.broken[row, k].any()):
            place = int(self.start[row, k]) + int(self.broken[row, k].long().argmax())
            raise NonFiniteLogitsError(
                f"row {row}, position {place}, step {int(self.steps_before[row, k])}: the target's logits hold "
                "NaN or infinity, or no finite value; check the weights and the dtype (bfloat16 or float32)"
            )
        if not bool(self.positions[row, k].any()):
            raise StalledError(
                f"row {row}, step {int(self.steps_before[row, k])}: the decoding rule committed no position; "
                "a rule must commit at least one active position per step"
            )

    def steps(self, row: int, path: Sequence[int]) -> tuple[Step, ...]:
        """The denoising steps along `path`."""
        steps = []
        for k in path:
            start = int(self.start[row, k])
            places = self.positions[row, k].nonzero().squeeze(-1).tolist()
            tokens = self.tokens[row, k].tolist()
            steps.append(
                Step(
                    block=start + int(self.open_block[row, k]) * self.block_length,
                    step=int(self.steps_before[row, k]),
                    positions=tuple(start + p for p in places),
                    tokens=tuple(tokens[p] for p in places),
                )
            )
        return tuple(steps)
