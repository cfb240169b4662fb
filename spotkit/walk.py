"""One pass's decisions on the host: which states were accepted, and which steps that makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs
import torch
from torch import Tensor

from spotkit.errors import NonFiniteLogitsError, PartError, StalledError
from spotkit.logprobs import scatter
from spotkit.types import Commit, LogProbs, State, Step, TargetSpec


@attrs.frozen(eq=False)
class Walk:
    """One pass's decisions on the host, from a single copy of a few integers per state.

    What the parts decided is checked along the accepted states only: nothing else has an effect.
    """

    links: Tensor
    start: Tensor
    steps_before: Tensor
    open_block: Tensor
    valid: Tensor
    canvas: Tensor
    committed: Tensor
    due: Tensor
    positions: Tensor
    tokens: Tensor
    broken: Tensor
    block_length: int
    spec: TargetSpec

    @classmethod
    def copy(
        cls, candidates: State, commit: Commit, links: Tensor, *, valid: Tensor, logprobs: LogProbs, spec: TargetSpec
    ) -> Walk:
        """Copies what the walk needs from the device."""
        broken = scatter(logprobs.raw[:, 0].isnan(), logprobs.index, False)
        flags = [candidates.committed, logprobs.index, commit.positions, broken]
        bits = torch.stack([flag.long() << i for i, flag in enumerate(flags)]).sum(0)
        scalars = (links, candidates.start, candidates.step, candidates.open_block, valid.long())
        packed = torch.cat([torch.stack(scalars, -1), candidates.canvas, commit.tokens, bits], -1).cpu()
        numbers, canvas, tokens, bits = packed.split([len(scalars), *[commit.tokens.shape[-1]] * 3], dim=-1)
        return cls(
            links=numbers[..., 0],
            start=numbers[..., 1],
            steps_before=numbers[..., 2],
            open_block=numbers[..., 3],
            valid=numbers[..., 4].bool(),
            canvas=canvas,
            committed=(bits & 1).bool(),
            due=(bits >> 1 & 1).bool(),
            positions=(bits >> 2 & 1).bool(),
            tokens=tokens,
            broken=(bits >> 3 & 1).bool(),
            block_length=candidates.block_length,
            spec=spec,
        )

    def path(self, row: int) -> tuple[int, ...]:
        """The accepted states of one row, from the current one on.

        Raises:
            NonFiniteLogitsError, StalledError, PartError: see the classes.
        """
        path: list[int] = []
        links = self.links[row].tolist()
        k = 0
        while k != -1:
            if path:
                self._check_link(row, path[-1], k)
            path.append(k)
            self._check(row, path)
            k = links[k]
        return tuple(path)

    def _check_link(self, row: int, here: int, there: int) -> None:
        count = self.links.shape[1]
        if not 0 <= there < count or not bool(self.valid[row, there]):
            raise PartError(
                f"acceptance.accept: row {row} leads from candidate {here} to {there}; give -1, or one of the "
                f"{int(self.valid[row].sum())} valid candidates"
            )
        kept = self.committed[row, here]
        same = self.canvas[row, there] == self.canvas[row, here]
        more = int(self.committed[row, there].sum()) > int(kept.sum())
        if not more or not bool((~kept | (self.committed[row, there] & same)).all()):
            raise PartError(
                f"acceptance.accept: row {row} leads from candidate {here} to {there}, which does not extend it; "
                "what is committed stays as it is"
            )

    def _check(self, row: int, path: Sequence[int]) -> None:
        """Checks the last state of `path`."""
        k = path[-1]
        step = self._counts(row, path)[-1]
        here = f"row {row}, step {step}"
        if bool(self.broken[row, k].any()):
            place = self._first(row, k, self.broken[row, k])
            raise NonFiniteLogitsError(
                f"row {row}, position {place}, step {step}: the target's logits hold "
                "NaN or infinity, or no finite value; check the weights and the dtype (bfloat16 or float32)"
            )
        positions, tokens = self.positions[row, k], self.tokens[row, k]
        if not bool(positions.any()):
            raise StalledError(
                f"{here}: the decoding rule committed no position; a rule must commit at least one active position "
                "per step"
            )
        stray = positions & ~self.due[row, k]
        if bool(stray.any()):
            raise PartError(
                f"{here}: the decoding rule committed position {self._first(row, k, stray)}, which is not active; "
                "only the open positions of the open block may commit"
            )
        strange = positions & ((tokens < 0) | (tokens >= self.spec.vocab_size) | (tokens == self.spec.mask_id))
        if bool(strange.any()):
            token = int(tokens[int(strange.long().argmax())])
            raise PartError(
                f"{here}: the decoding rule committed token {token} at position {self._first(row, k, strange)}; give "
                f"ids from 0 to {self.spec.vocab_size - 1}, the mask id {self.spec.mask_id} excepted"
            )

    def _first(self, row: int, k: int, where: Tensor) -> int:
        """Absolute position of the first true entry of `where` `[N]`."""
        return int(self.start[row, k]) + int(where.long().argmax())

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
        """The denoising steps along `path`.

        A step to a candidate commits what that candidate has more, which an acceptance rule other than state
        equality need not have from the target.
        """
        return tuple(
            self._step(row, k, after, count)
            for k, after, count in zip(path, [*path[1:], None], self._counts(row, path), strict=True)
        )

    def _step(self, row: int, k: int, after: int | None, count: int) -> Step:
        if after is None:
            positions, tokens = self.positions[row, k], self.tokens[row, k]
        else:
            positions, tokens = self.committed[row, after] & ~self.committed[row, k], self.canvas[row, after]
        start, places = int(self.start[row, k]), positions.nonzero().squeeze(-1).tolist()
        return Step(
            block=start + int(self.open_block[row, k]) * self.block_length,
            step=count,
            positions=tuple(start + p for p in places),
            tokens=tuple(tokens[places].tolist()),
        )
