"""Beam search: the best kernels of the last round are expanded evenly, and nothing else is.

Lowerre, 1976, "The HARPY speech recognition system"; for kernels KernelAgent (Meta,
2025), with a beam of two.
"""

from __future__ import annotations

import random

from search.protocols import View
from search.records.tree import Expansion, Seed, fastest
from search.strategies.values import is_exhausted, open_seeds, require


class Beam:
    """Each round starts from the best `width` kernels of the round before.

    A round in which nothing was correct, or of which all is exhausted, is passed over. Before there is any,
    the beam is the best of the library, or the reference. A round's ideas are shared evenly, what is left
    over goes to the best ones.

    Raises ValueError for a number below one.
    """

    synchronous = True

    def __init__(self, ideas: int, branch: int, width: int) -> None:
        require("beam", 1, ideas=ideas, branch=branch, width=width)
        self.ideas = ideas
        self.branch = branch
        self.width = width

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        """One expansion for each kernel of the beam, the best first, without those that get no idea."""
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
