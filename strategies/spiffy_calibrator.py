"""How Spiffy's graphs are made: counted formulas along a few trajectories of the target.

Source: "Spiffy", arXiv 2509.18085: at most 50 samples; the connected graph of size D whose nodes have the largest
counts, each with those of its parents added (degree-1 accumulation).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from spotkit.fields import positive
from spotkit.protocols import DecodingRule, Target
from spotkit.sampler import Sampler
from spotkit.training.collect import Recipe, trajectories
from spotkit.types import Evidence, State, TargetSpec

from .spiffy import Formula, Graph, Pair, Ranks, Spiffy, save

Node = frozenset[Pair]


@attrs.frozen
class RankReader:
    """What is written down at each pass: the ranks that formulas refer to.

    Attributes:
        depth: steps ahead that are counted.
    """

    depth: int

    def inputs(self, state: State, *, evidence: Evidence, rule: DecodingRule, sampler: Sampler) -> dict[str, Tensor]:
        """Rank of every position (-1 if it is not open in the open block) and the best tokens."""
        ranks = Ranks.of(state, evidence=evidence, rule=rule, sampler=sampler, depth=self.depth)
        places = torch.arange(ranks.position.shape[1], device=ranks.position.device)
        places = torch.where(places < ranks.open.unsqueeze(1), places, -1)
        rank = torch.full_like(ranks.position, -1).scatter(1, ranks.position, places)
        return {"rank": rank, "tokens": ranks.tokens}


@attrs.define
class Counts:
    """How often each state was gone through, seen from the states before it."""

    seen: Counter[Node] = attrs.field(factory=Counter)
    ways: dict[Node, Counter[Formula]] = attrs.field(factory=dict)

    def add(self, formula: Formula) -> None:
        """Adds one way to a state."""
        node = frozenset(pair for step in formula for pair in step)
        self.seen[node] += 1
        self.ways.setdefault(node, Counter())[formula] += 1

    def formula(self, node: Node) -> Formula:
        """The way to a state that was seen most often."""
        return self.ways[node].most_common(1)[0][0]


@attrs.frozen
class SpiffyCalibrator:
    """Makes Spiffy's graphs.

    Attributes:
        size: formulas per graph.
        depth: steps ahead that a formula may reach.
    """

    size: int = attrs.field(default=63, validator=positive)
    depth: int = attrs.field(default=12, validator=positive)

    def calibrate(self, target: Target, prompts: Sequence[Sequence[int]], *, recipe: Recipe) -> Graph:
        """The graph for a target, from its trajectories on `prompts`."""
        counts = Counts()
        examples = trajectories(target, prompts, reader=RankReader(self.depth), recipe=recipe)
        for index in range(len(examples.get("time", ()))):
            for formula in formulas_of({name: values[index] for name, values in examples.items()}, self.depth):
                counts.add(formula)
        return select(counts, self.size)

    def save(self, made: Mapping[int, Graph], path: Path, *, target: TargetSpec, about: Mapping[str, Any]) -> None:
        """Writes the graphs of all block lengths into the folder `path`."""
        save(path, Spiffy(made, target.fingerprint), about=about)


def formulas_of(example: dict[str, Tensor], depth: int) -> Iterator[Formula]:
    """The formulas of the states after one, two, … steps, as far as ranks can say them."""
    rank, time, final = (example[name].tolist() for name in ("rank", "time", "final"))
    steps: list[tuple[Pair, ...]] = []
    for ahead in range(depth):
        tokens = example["tokens"][min(ahead, len(example["tokens"]) - 1)].tolist()
        places = [p for p, when in enumerate(time) if when == ahead]
        if not places or any(rank[p] < 0 or final[p] not in tokens[p] for p in places):
            return
        steps.append(tuple(sorted((rank[p], tokens[p].index(final[p])) for p in places)))
        yield tuple(steps)


def select(counts: Counts, size: int) -> Graph:
    """Best first: the node with the largest accumulated count among those that follow from what is chosen."""
    nodes = {node: counts.formula(node) for node in counts.seen}
    levels: dict[int, list[Node]] = {}
    for node, formula in nodes.items():
        levels.setdefault(len(formula), []).append(node)
    children: dict[Node, list[Node]] = {}
    worth = dict(counts.seen)
    for level, parents in levels.items():
        for node in levels.get(level + 1, []):
            for parent in parents:
                if parent < node:
                    children.setdefault(parent, []).append(node)
                    worth[node] += counts.seen[parent]
    heap = [(-worth[node], nodes[node], node) for node in levels.get(1, [])]
    heapq.heapify(heap)
    chosen: list[Node] = []
    met = set(levels.get(1, []))
    while heap and len(chosen) < size:
        _, _, node = heapq.heappop(heap)
        chosen.append(node)
        for child in children.get(node, []):
            if child not in met:
                met.add(child)
                heapq.heappush(heap, (-worth[child], nodes[child], child))
    return Graph(tuple(nodes[node] for node in chosen), tuple(counts.seen[node] for node in chosen))
