"""A tree of ideas, searched best first: an idea is tried further until it no longer gains.

After K-Search (Cao et al., 2026, arXiv:2602.19128), where a model keeps the tree and scores its nodes. Here
the score is what was measured, and the proposer is told what became of the ideas before.
"""

from __future__ import annotations

import math
import random
from collections import Counter

from search.protocols import View
from search.records.tree import Expansion
from search.strategies.values import IdeaNode, idea_nodes_of, is_exhausted, is_library, pending_only, require


class IdeaTree:
    """Builds on the best variant of the idea with the highest score that has not been given up.

    A score is the logarithm of the speedup of the idea's best variant, less `depth_price` for each idea
    that led to it: of two equal kernels, the one that came of fewer ideas has more left to try. An idea is
    given up after `patience` tries in a row that did not gain: ideas built on it, none of them faster than
    it and those tried before. Tries that are under way count as such until they are known. The reference is
    a node like any other; where all are given up, new ideas start from there, or, where it is exhausted, from
    what has the highest score.

    Nothing is left to chance: ties go to the idea that came first.

    Raises ValueError for a number below one, or a negative price.
    """

    synchronous = False

    def __init__(self, ideas: int, branch: int, patience: int, depth_price: float) -> None:
        require("idea_tree", 1, ideas=ideas, branch=branch, patience=patience)
        require("idea_tree", 0, depth_price=depth_price)
        self.ideas = ideas
        self.branch = branch
        self.patience = patience
        self.depth_price = depth_price

    def ask(self, view: View, rng: random.Random) -> Expansion:
        """One more try on the best idea that is open."""
        nodes, under_way = idea_nodes_of(view), pending_only(view)
        depths: dict[IdeaNode, int] = {}
        scores: dict[IdeaNode, float] = {}
        for node in nodes:  # parents stand before their children
            depths[node] = depths[node.parent] + 1 if node.parent is not None else 0
            if (node.idea is None or node.seed is not None) and not is_exhausted(node.seed, view):
                scores[node] = math.log(node.value) - self.depth_price * depths[node]
        kept = {node: score for node, score in scores.items() if _in_vain(node, under_way) < self.patience}
        if not kept and nodes[0] not in scores:
            kept = scores
        best = max(kept, key=kept.__getitem__, default=nodes[0])
        return Expansion(seed=best.seed, ideas=1, variants=self.branch)


def _in_vain(node: IdeaNode, under_way: Counter[str]) -> int:
    """How many tries in a row did not gain, the last ones."""
    best, tries = node.value, 0
    for child in node.children:
        if is_library(child.idea):
            continue
        tries += 1
        if child.value > best:
            best, tries = child.value, 0
    return tries + under_way[node.seed.kernel.id if node.seed else ""]
