"""Islands of MAP-Elites archives; parents are drawn by score, with a penalty for those used already.

Islands and archives as in AlphaEvolve (Novikov et al., 2025, arXiv:2506.13131) and OpenEvolve; cells after
MAP-Elites (Mouret and Clune, 2015, arXiv:1504.04909); the weights of parents are those of ShinkaEvolve (Lange
et al., 2025, arXiv:2509.19349).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evaluators.records.problem import content_id
from search.protocols import View
from search.records.tree import Expansion
from search.strategies.values import Node, is_exhausted, nodes_of, pending_only, require, standardised

HASHES = 16**8
"""The number of different eight-digit hashes, which decide which ideas migrate."""


@dataclass(eq=False)
class Islands:
    """Takes the islands in turn and builds on one of the island's elites.

    An idea from the reference founds a lineage on the island with the fewest ideas. Any other idea belongs to
    the island of the kernel that it builds on or, with probability `migration`, decided by the hash of its
    id, to the next island. Everything follows from the tree.

    The island with the fewest ideas, including those in flight, is next; without a correct kernel it starts
    from the reference. Its elites are the fastest kernel of each category and language that is not exhausted.
    One is drawn with the weight sigmoid(`sharpness` * score) / (1 + its ideas), where the score is the
    speedup in median absolute deviations above the elites' median.
    """

    synchronous = False

    ideas: int
    branch: int
    islands: int
    sharpness: float
    migration: float

    def __post_init__(self) -> None:
        require("islands", 1, ideas=self.ideas, branch=self.branch, islands=self.islands)
        require("islands", 0, sharpness=self.sharpness)
        if not 0 <= self.migration <= 1:
            raise ValueError(f"islands.migration is {self.migration}; it must be between 0 and 1")

    def ask(self, view: View, rng: random.Random) -> Expansion:
        """One idea for one of the elites of the island whose turn it is."""
        nodes = nodes_of(view)
        home, crowd = self.settle(view, nodes)
        turn = min(range(self.islands), key=lambda island: crowd[island])
        found = [node for node in nodes if node.idea in home and not is_exhausted(node.seed, view)]
        elites = _elites(view, [node for node in found if home[node.idea] == turn])
        if not elites and is_exhausted(None, view):
            elites = _elites(view, found)
        seed = rng.choices(elites, weights(elites, self.sharpness))[0].seed if elites else None
        return Expansion(seed=seed, ideas=1, variants=self.branch)

    def settle(self, view: View, nodes: Sequence[Node]) -> tuple[dict[str, int], list[int]]:
        """The island of each idea, and the number of ideas on each island."""
        home: dict[str, int] = {}
        crowd: Counter[int] = Counter()

        def fewest() -> int:
            return min(range(self.islands), key=lambda island: crowd[island])

        for idea in view.tree.ideas.values():
            parent = view.tree.variants.get(idea.parent)
            if parent is None:
                island = fewest()
            else:
                leaves = int(content_id("migrates", idea.id)[:8], 16) < self.migration * HASHES
                island = (home[parent.idea] + leaves) % self.islands
            home[idea.id] = island
            crowd[island] += 1
        of_kernels = {node.seed.kernel.id: home.get(node.idea) for node in nodes if node.seed is not None}
        for kernel, ideas in pending_only(view).items():
            for _ in range(ideas):
                of_kernel = of_kernels.get(kernel)
                crowd[fewest() if of_kernel is None else of_kernel] += 1
        return home, [crowd[island] for island in range(self.islands)]


def _elites(view: View, nodes: Sequence[Node]) -> list[Node]:
    """The fastest kernel of each category and language."""
    cells: dict[tuple[str, str], Node] = {}
    for node in nodes:
        if node.seed is not None:
            cell = (view.tree.ideas[node.idea].category, node.seed.kernel.language)
            if cell not in cells or node.value > cells[cell].value:
                cells[cell] = node
    return list(cells.values())


def weights(elites: Sequence[Node], sharpness: float) -> list[float]:
    """The relative probability of drawing each of the elites."""
    scores = standardised([node.value for node in elites])
    return [
        _sigmoid(sharpness * score) / (1 + node.tries) for score, node in zip(scores, elites, strict=True)
    ]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-max(-500.0, min(x, 500.0))))
