"""Idea branching: a beam of the best kernels so far, with most ideas for the best and several variants per
idea."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from search.protocols import View
from search.records.tree import Expansion, Seed
from search.strategies.values import least_speedup, open_seeds, require


@dataclass(eq=False)
class IdeaBranching:
    """Starts each round from the best `keep` kernels of all rounds so far and of the library (`open_seeds`).

    Without either, the round starts from the reference. `shares` decides how many ideas each kernel gets.
    Nothing is random. Without `synchronous` rounds, the same shares apply to the ideas in flight.
    """

    ideas: int
    branch: int
    keep: int
    synchronous: bool = True

    def __post_init__(self) -> None:
        require("idea_branching", 1, ideas=self.ideas, branch=self.branch, keep=self.keep)

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        """With rounds: one expansion per kernel, the best first, leaving out kernels that get no idea.
        Without: one idea, for the kernel with the fewest in flight for its share."""
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

    def threshold(self, view: View) -> float:
        """The speedup of the last of the `keep` best kernels."""
        return least_speedup(view, self.keep)


def shares(ideas: int, seeds: int) -> list[int]:
    """How many of `ideas` each of `seeds` seeds gets, the best seed first; the sum is `ideas`.

    D'Hondt's rule, where the seed of rank r has 1/r votes: the next idea goes to the seed with the largest
    votes / (ideas it has + 1), a tie to the better seed. 25 ideas for 4 seeds are 12, 6, 4 and 3; a single
    idea goes to the best seed.
    """
    given = [0] * seeds
    for _ in range(ideas):
        given[next_share(given)] += 1
    return given


def next_share(given: Sequence[int]) -> int:
    """The rank of the seed that gets the next idea by the same rule, given the ideas each seed has."""
    # votes / (given + 1) is largest where its inverse, an exact integer, is smallest
    return min(range(len(given)), key=lambda rank: (rank + 1) * (given[rank] + 1))


def _same(one: Seed | None, other: Seed | None) -> bool:
    return (one and one.kernel.id) == (other and other.kernel.id)
