"""Best-first growth of draft trees whose equal states are merged."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spotkit.capabilities import Scheduled
from spotkit.types import Draft, State

_CHILDREN = 8  # successors considered per state; the ninth most likely order is never worth a pass


@attrs.frozen(eq=False)
class Outlook:
    """What a drafter expects of one row, on the host. `D` steps ahead (1 if they are all alike).

    Index 0 of `D` is the next step of the open block, and the first step of every later block.
    """

    tokens: NDArray[np.int64]
    """The token each position would commit at that step `[D, N]`."""
    scores: NDArray[np.float32]
    """Plackett-Luce scores: how soon each position commits `[D, N]`."""
    held: NDArray[np.float32]
    """Probability that the token stands when the position commits `[D, N]`."""
    known: NDArray[np.bool_]
    """Which positions the evidence covers `[N]`."""
    shifts: NDArray[np.float32] | None = None
    """What committing the first position adds to the score of the second `[N, N]`."""


@attrs.define(eq=False)
class _Node:
    """A state of the growing tree; the only mutable value here, and never handed out."""

    added: frozenset[tuple[int, int]]
    open: NDArray[np.int64]
    block: int
    step: int
    shift: NDArray[np.float32] | float
    mass: float = 0.0
    chosen: bool = False
    edges: list[tuple[_Node, float]] = attrs.field(factory=list)


@attrs.frozen(eq=False)
class Growth:
    """Grows the draft tree of one row best first, by the probability that the decode passes through a state.

    Equal states are one node, whose probability is the sum over the orders that lead to it.
    """

    outlook: Outlook
    quota: Callable[[int, int], int]
    """(block in the window, steps since the start of the draft in it) -> positions committed."""
    by_confidence: bool
    block_length: int
    open: NDArray[np.bool_]
    """Open, existing positions of the current state `[N]`."""
    eos_ids: frozenset[int] = frozenset()
    ended: tuple[int, ...] = ()
    """Canvas positions that hold an end token with something still open before it."""

    def grow(self, count: int) -> list[_Node]:
        """The `count` most probable states after the current one, parents first."""
        blocks = np.flatnonzero(self.open) // self.block_length
        if blocks.size == 0:
            return []
        root = self._node(frozenset(), int(blocks[0]), 0, 0.0)
        if root is None:
            return []
        nodes: dict[frozenset[tuple[int, int]], _Node | None] = {}
        ticket = itertools.count()
        heap: list[tuple[float, int, _Node, float]] = []

        def give(node: _Node, mass: float) -> None:
            node.mass += mass
            if not node.chosen:
                heapq.heappush(heap, (-node.mass, next(ticket), node, node.mass))
                return
            for child, share in node.edges:
                give(child, mass * share)

        def choose(node: _Node) -> None:
            node.chosen = True
            for positions, share in self._children(node):
                tokens = self.outlook.tokens[min(node.step, len(self.outlook.tokens) - 1)]
                added = node.added.union((int(p), int(tokens[p])) for p in positions)
                if added not in nodes:
                    nodes[added] = self._after(node, added, positions)
                child = nodes[added]
                if child is not None:
                    node.edges.append((child, share))
                    give(child, node.mass * share)

        root.mass = 1.0
        choose(root)
        chosen: list[_Node] = []
        while heap and len(chosen) < count:
            _, _, node, mass = heapq.heappop(heap)
            if not node.chosen and mass == node.mass:
                choose(node)
                chosen.append(node)
        return chosen

    def _after(self, node: _Node, added: frozenset[tuple[int, int]], positions: NDArray[np.int64]) -> _Node | None:
        if self._finished(added):
            return None
        shift = node.shift
        if self.outlook.shifts is not None:
            shift = shift + self.outlook.shifts[positions].sum(0)
        if len(positions) == len(node.open):
            return self._node(added, node.block + 1, 0, shift)
        left = node.open[(node.open[:, None] != positions).all(1)]  # isin takes far longer at this size
        return _Node(added, left, node.block, node.step + 1, shift)

    def _finished(self, added: frozenset[tuple[int, int]]) -> bool:
        """Whether everything up to an end token is committed: such a state needs no scoring."""
        ends = [*self.ended, *(p for p, token in added if token in self.eos_ids)]
        if not ends:
            return False
        end = min(ends)
        return sum(p < end for p, _ in added) == int(self.open[:end].sum())

    def _node(
        self, added: frozenset[tuple[int, int]], block: int, step: int, shift: NDArray[np.float32] | float
    ) -> _Node | None:
        """A node at the start of a block; None if there is nothing to decide there, or nothing known."""
        span = slice(block * self.block_length, (block + 1) * self.block_length)
        places = np.flatnonzero(self.open[span]) + span.start
        if places.size == 0 or not self.outlook.known[places].all():
            return None
        return _Node(added, places, block, step, shift)

    def _children(self, node: _Node) -> Iterator[tuple[NDArray[np.int64], float]]:
        places = node.open
        count = min(self.quota(node.block, node.step), len(places))
        ahead = min(node.step, len(self.outlook.tokens) - 1)
        held = self.outlook.held[ahead]
        if not self.by_confidence or count == len(places):
            first = places[:count]
            yield first, float(held[first].prod())
            return
        scores = self.outlook.scores[ahead, places]
        if not isinstance(node.shift, float):
            scores = scores + node.shift[places]
        order = np.argsort(-scores, kind="stable")
        sure, rest = places[order[: count - 1]], order[count - 1 :]
        weights = np.exp(scores[rest] - scores[rest[0]])
        shares = weights / weights.sum() * (held[places[rest]] * float(held[sure].prod()))
        for i in range(min(_CHILDREN, len(rest))):
            yield np.append(sure, places[rest[i]]), float(shares[i])


def materialise(state: State, rows: Sequence[list[_Node]]) -> Draft | None:
    """The draft `[B, K]` of the nodes chosen for each row of `state` `[B]`."""
    width = max((len(nodes) for nodes in rows), default=0)
    if width == 0:
        return None
    spread = state.spread(width)
    canvas = spread.canvas.to("cpu", copy=True).contiguous().numpy()
    committed = spread.committed.to("cpu", copy=True).contiguous().numpy()
    step = spread.step.to("cpu", copy=True).contiguous().numpy()
    valid = np.zeros(step.shape, dtype=np.bool_)
    first = state.open_block.tolist()
    for row, nodes in enumerate(rows):
        for k, node in enumerate(nodes):
            for position, token in node.added:
                canvas[row, k, position] = token
                committed[row, k, position] = True
            step[row, k] = node.step + (step[row, k] if node.block == first[row] else 0)
            valid[row, k] = True
    device = state.canvas.device
    states = attrs.evolve(
        spread,
        canvas=torch.from_numpy(canvas).to(device),
        committed=torch.from_numpy(committed).to(device),
        step=torch.from_numpy(step).to(device),
    )
    return Draft(states, torch.from_numpy(valid).to(device))


def outlooks(
    tokens: Tensor,
    scores: Tensor,
    held: Tensor,
    known: Tensor,
    shifts: Tensor | None = None,
) -> list[Outlook]:
    """One outlook per row, copied to the host; `[B, D, N]` each, `known` `[B, N]`, `shifts` `[B, N, N]`."""
    arrays = [t.cpu().numpy() for t in (tokens, scores.float(), held.float(), known)]
    views = [Outlook(*fields) for fields in zip(*arrays, strict=True)]
    if shifts is None:
        return views
    pairs = shifts.float().cpu().numpy()
    return [attrs.evolve(view, shifts=pair) for view, pair in zip(views, pairs, strict=True)]


def grow_rows(
    state: State, views: list[Outlook], *, rule: Scheduled, count: int, eos_ids: Sequence[int] = ()
) -> Draft | None:
    """Grows a tree of at most `count` candidates for every row; none beyond a text that ends in `eos_ids`."""
    length = state.block_length
    active = state.active.any(-1).tolist()
    free = (~state.committed & state.exists).cpu().numpy()
    canvas = state.canvas.cpu().numpy()
    rows = []
    for row, view in enumerate(views):
        first, begun = int(state.open_block[row]), int(state.step[row])

        def quota(block: int, step: int, first: int = first, begun: int = begun) -> int:
            return rule.quota(step + (begun if block == first else 0), block_length=length)

        begins = int(free[row].argmax())
        ends = np.flatnonzero(np.isin(canvas[row], list(eos_ids)) & ~free[row])
        ended = tuple(int(p) for p in ends if p > begins)
        growth = Growth(view, quota, rule.by_confidence, length, free[row], frozenset(eos_ids), ended)
        rows.append(growth.grow(count) if active[row] else [])
    return materialise(state, rows)
