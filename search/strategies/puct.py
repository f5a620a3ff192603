"""PUCT over all kernels found, as TTT-Discover reuses its states.

A kernel's score is Q + c * range * P * sqrt(1 + T) / (1 + n). Q is the best that came of it, not the mean:
one is enough. From Yuksekgonul et al., 2026, "Learning to Discover at Test Time" (arXiv:2601.16175), after
Rosin's PUCT (2011). There a pick is a group of rollouts; here it is an idea with its variants.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict

from search.protocols import View
from search.records.tree import Expansion
from search.strategies.values import Node, is_exhausted, nodes_of, pending_on, require


class Puct:
    """Expands the kernel with the highest score.

    Q is the value of its best child, its own while no child is correct. P falls with its rank in the buffer,
    linearly. n counts the ideas on it and on all that came of it, T all ideas, both with those under way.
    The range is that of the values in the buffer. The buffer holds the best `per_idea` variants of each idea,
    the best `buffer` of all, and the reference. No two ideas are under way in one lineage: a kernel, what
    it came from and what came of it. Only the reference, from which all came, is taken as often as needed
    where nothing else is free; what is under way on it is a lineage of its own.

    Nothing is left to chance: ties go to the faster kernel.

    Raises ValueError for a number below one, or a negative c.
    """

    synchronous = False

    def __init__(self, ideas: int, branch: int, c: float, per_idea: int, buffer: int) -> None:
        require("puct", 1, ideas=ideas, branch=branch, per_idea=per_idea, buffer=buffer)
        require("puct", 0, c=c)
        self.ideas = ideas
        self.branch = branch
        self.c = c
        self.per_idea = per_idea
        self.buffer = buffer

    def ask(self, view: View, rng: random.Random) -> Expansion:
        """One idea on the kernel with the highest score of those that are free."""
        nodes = nodes_of(view)
        visits, buffer = _visits(nodes), self._buffer(nodes)
        buffer = [node for node in buffer if not is_exhausted(node.seed, view)] or buffer
        free = _free(nodes, set(pending_on(view))) & set(buffer)
        free = free or {nodes[0]} & set(buffer) or set(buffer)
        total = visits[nodes[0]]
        of_the_buffer = [node.value for node in buffer]
        weight = self.c * (max(of_the_buffer) - min(of_the_buffer)) * math.sqrt(1 + total)
        ranks = len(buffer) * (len(buffer) + 1) / 2

        def score(rank: int) -> float:
            node, prior = buffer[rank], (len(buffer) - rank) / ranks
            return _quality(node) + weight * prior / (1 + visits[node])

        chosen = max((rank for rank, node in enumerate(buffer) if node in free), key=score)
        return Expansion(seed=buffer[chosen].seed, ideas=1, variants=self.branch)

    def _buffer(self, nodes: list[Node]) -> list[Node]:
        """The best first."""
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
    """The ideas on each kernel and on all that came of it."""
    visits = {node: node.tries for node in nodes}
    for node in reversed(nodes):  # children stand after their parents
        if node.parent is not None:
            visits[node.parent] += visits[node]
    return visits


def _free(nodes: list[Node], pending: set[str]) -> set[Node]:
    """Those with no idea under way on them, on what they came from, or on what came of them."""
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
