"""Beam search: only the best kernels of the last round are expanded, evenly.

Lowerre, 1976, "The HARPY speech recognition system"; for kernels, KernelAgent (Meta, 2025), with a beam of
two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from search.protocols import View
from search.records.tree import Expansion, Seed, fastest
from search.strategies.values import is_exhausted, open_seeds, require


@dataclass(eq=False)
class Beam:
    """Starts each round from the best `width` kernels of the round before.

    A round without a correct kernel, or in which all kernels are exhausted, is skipped. Before the first such
    round, the beam is the best of the library, or the reference. A round's ideas are shared evenly; the
    remainder goes to the best kernels.
    """

    synchronous = True

    ideas: int
    branch: int
    width: int

    def __post_init__(self) -> None:
        require("beam", 1, ideas=self.ideas, branch=self.branch, width=self.width)

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        """One expansion for each kernel of the beam, the best first; kernels that get no idea are left
        out."""
        rank, seeds = len(view.pending), self._beam(view)[: self.ideas]
        if rank >= len(seeds):
            return None
        each, left_over = divmod(self.ideas, len(seeds))
        return Expansion(seed=seeds[rank], ideas=each + (rank < left_over), variants=self.branch)

    def _beam(self, view: View) -> list[Seed | None]:
        tree = view.tree
        for number in range(tree.rounds_closed, 0, -1):
            of_the_round = [each for each in tree.variants.values() if each.round == number]
            of_the_round = [each for each in of_the_round if not is_exhausted(each.seed, view)]
            if best := fastest(of_the_round, self.width, tree.ranking):
                return [variant.seed for variant in best]
        return open_seeds(view, self.width)
