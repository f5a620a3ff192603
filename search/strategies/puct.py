"""PUCT over all kernels found, in the way TTT-Discover reuses its states.

A kernel's score is Q + c * range * P * sqrt(1 + T) / (1 + n). Q is its best offspring, not the mean, because
one is enough. From Yuksekgonul et al., 2026, "Learning to Discover at Test Time" (arXiv:2601.16175), after
Rosin's PUCT (2011). A pick there is a group of rollouts; here it is an idea with its variants.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass

from search.protocols import View
from search.records.tree import Expansion
from search.strategies.values import Node, is_exhausted, nodes_of, pending_on, require


@dataclass(eq=False)
class Puct:
    """Expands the kernel with the highest score.

    Q is the value of the kernel's best child, or its own without a correct child. P falls linearly with its
    rank in the buffer. n counts the ideas for it and for all its descendants, T all ideas, both including
    those in flight. The range is that of the values in the buffer.

    The buffer has the best `per_idea` variants of each idea, the best `buffer` of those, and the reference.
    No two ideas are in flight in one lineage: a kernel, its ancestors and its descendants. Only the
    reference, the ancestor of everything, is taken as often as needed while nothing else is free; ideas in
    flight for it count as a separate lineage.

    Nothing is random: ties go to the faster kernel.
    """

    synchronous = False

    ideas: int
    branch: int
    c: float
    per_idea: int
    buffer: int

    def __post_init__(self) -> None:
        require("puct", 1, ideas=self.ideas, branch=self.branch, per_idea=self.per_idea, buffer=self.buffer)
        require("puct", 0, c=self.c)

    def ask(self, view: View, rng: random.Random) -> Expansion:
        """One idea for the kernel with the highest score among those that are free."""
        nodes = nodes_of(view)
        visits, buffer = _visits(nodes), self._buffer(nodes)
        buffer = [node for node in buffer if not is_exhausted(node.seed, view)] or buffer
        free = _free(nodes, set(pending_on(view))) & set(buffer)
        free = free or {nodes[0]} & set(buffer) or set(buffer)
        total = visits[nodes[0]]
        values = [node.value for node in buffer]
        weight = self.c * (max(values) - min(values)) * math.sqrt(1 + total)
        ranks = len(buffer) * (len(buffer) + 1) / 2

        def score(rank: int) -> float:
            node, prior = buffer[rank], (len(buffer) - rank) / ranks
            return _quality(node) + weight * prior / (1 + visits[node])

        chosen = max((rank for rank, node in enumerate(buffer) if node in free), key=score)
        return Expansion(seed=buffer[chosen].seed, ideas=1, variants=self.branch)

    def _buffer(self, nodes: list[Node]) -> list[Node]:
        """The buffer, the best kernel first."""
        of_ideas: dict[str, list[Node]] = defaultdict(list)
        for node in sorted(nodes[1:], key=lambda each: -each.value):
            siblings = of_ideas[node.idea]
            if not node.idea or len(siblings) < self.per_idea:
                siblings.append(node)
        kept = sorted((node for each in of_ideas.values() for node in each), key=lambda each: -each.value)
        return sorted([*kept[: self.buffer], nodes[0]], key=lambda each: -each.value)


def _quality(node: Node) -> float:
    return max((child.value for child in node.children), default=node.value)


def _visits(nodes: list[Node]) -> dict[Node, int]:
    """The number of ideas for each kernel and its descendants."""
    visits = {node: node.tries for node in nodes}
    for node in reversed(nodes):  # children come after their parents
        if node.parent is not None:
            visits[node.parent] += visits[node]
    return visits


def _free(nodes: list[Node], pending: set[str]) -> set[Node]:
    """The kernels without ideas in flight for themselves, their ancestors and their descendants."""
    below: set[Node] = set()
    above: set[Node] = set()
    for node in nodes[1:]:
        if node.seed is not None and node.seed.kernel.id in pending:
            below.add(node)
            up = node.parent
            while up is not None and up not in above:
                above.add(up)
                up = up.parent
        elif node.parent in below:
            below.add(node)
    free = {node for node in nodes[1:] if node not in below and node not in above}
    return free if pending else free | {nodes[0]}
