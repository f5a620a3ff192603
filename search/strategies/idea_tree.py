"""A tree of ideas, searched best first: an idea is tried further until it no longer gains.

After K-Search (Cao et al., 2026, arXiv:2602.19128), where a model maintains the tree and scores its nodes.
Here the score is measured, and the proposer is shown the results of earlier ideas.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

from search.protocols import View
from search.records.tree import Expansion
from search.strategies.values import IdeaNode, idea_nodes_of, is_exhausted, is_library, pending_only, require


@dataclass(eq=False)
class IdeaTree:
    """Builds on the best variant of the idea with the highest score that has not been given up.

    A score is the logarithm of the speedup of the idea's best variant, minus `depth_price` for each idea that
    led to it: of two equal kernels, the one reached with fewer ideas has more left to try. An idea is given
    up after `patience` tries in a row without a gain: ideas built on it, none faster than it and the tries
    before. Tries in flight count as failed until their results are known. The reference is a node like any
    other. If all nodes are given up, new ideas start from the reference or, if that is exhausted, from the
    node with the highest score.

    Nothing is random: ties go to the earlier idea.
    """

    synchronous = False

    ideas: int
    branch: int
    patience: int
    depth_price: float

    def __post_init__(self) -> None:
        require("idea_tree", 1, ideas=self.ideas, branch=self.branch, patience=self.patience)
        require("idea_tree", 0, depth_price=self.depth_price)

    def ask(self, view: View, rng: random.Random) -> Expansion:
        """One more try for the best node that is not given up."""
        nodes, under_way = idea_nodes_of(view), pending_only(view)
        depths: dict[IdeaNode, int] = {}
        scores: dict[IdeaNode, float] = {}
        for node in nodes:  # parents come before their children
            depths[node] = depths[node.parent] + 1 if node.parent is not None else 0
            if (node.idea is None or node.seed is not None) and not is_exhausted(node.seed, view):
                scores[node] = math.log(node.value) - self.depth_price * depths[node]
        kept = {
            node: score
            for node, score in scores.items()
            if _tries_without_gain(node, under_way) < self.patience
        }
        if not kept and nodes[0] not in scores:
            kept = scores
        best = max(kept, key=kept.__getitem__, default=nodes[0])
        return Expansion(seed=best.seed, ideas=1, variants=self.branch)


def _tries_without_gain(node: IdeaNode, under_way: Counter[str]) -> int:
    """The number of last tries in a row that did not gain."""
    best, tries = node.value, 0
    for child in node.children:
        if is_library(child.idea):
            continue
        tries += 1
        if child.value > best:
            best, tries = child.value, 0
    return tries + under_way[node.seed.kernel.id if node.seed else ""]
