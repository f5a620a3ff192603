"""Idea branching: a beam of the best kernels so far, most ideas for the best, several variants an idea."""

from __future__ import annotations

import random
from collections.abc import Sequence

from search.protocols import View
from search.records.tree import Expansion, Seed
from search.strategies.values import open_seeds, require


class IdeaBranching:
    """Starts each round from the best `keep` kernels of all rounds so far and of the library.

    They are those of `open_seeds`. While there is neither, the round starts from the reference. A round
    has `ideas` ideas of `branch` variants each. They are shared by `shares`. Nothing is left to chance.
    Without `synchronous` rounds the same shares hold of the ideas that are under way.

    Raises ValueError for a number below one.
    """

    def __init__(self, ideas: int, branch: int, keep: int, synchronous: bool = True) -> None:
        require("idea_branching", 1, ideas=ideas, branch=branch, keep=keep)
        self.ideas = ideas
        self.branch = branch
        self.keep = keep
        self.synchronous = synchronous

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        """In a round one expansion a seed, the best seed first, without those that get no idea; otherwise one
        idea at a time, for the seed that has the fewest under way for its share."""
        seeds = open_seeds(view, self.keep)
        if not self.synchronous:
            under_way = [sum(each.ideas for each in view.pending if _same(each.seed, seed)) for seed in seeds]
            return Expansion(seed=seeds[next_share(under_way)], ideas=1, variants=self.branch)
        of = [
            (seed, ideas) for seed, ideas in zip(seeds, shares(self.ideas, len(seeds)), strict=True) if ideas
        ]
        if len(view.pending) == len(of):
            return None
        seed, ideas = of[len(view.pending)]
        return Expansion(seed=seed, ideas=ideas, variants=self.branch)


def shares(ideas: int, seeds: int) -> list[int]:
    """How many of `ideas` each of `seeds` seeds gets, the best seed first; the sum is `ideas`.

    D'Hondt's rule, where the seed of rank r has 1/r votes: the next idea goes to the seed with the largest
    votes / (ideas it has + 1), a tie to the better seed. 25 ideas on 4 seeds are 12, 6, 4 and 3; a single
    idea goes to the best seed.
    """
    given = [0] * seeds
    for _ in range(ideas):
        given[next_share(given)] += 1
    return given


def next_share(given: Sequence[int]) -> int:
    """The rank of the seed that gets the next idea, by the same rule, where each has so many."""
    # votes / (given + 1) is largest where its inverse, an exact integer, is smallest
    return min(range(len(given)), key=lambda rank: (rank + 1) * (given[rank] + 1))


def _same(one: Seed | None, other: Seed | None) -> bool:
    return (one and one.kernel.id) == (other and other.kernel.id)
