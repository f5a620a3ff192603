"""Which model is asked for an idea, where there are several."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from search.records.tree import Outcome


@dataclass(frozen=True, kw_only=True)
class ModelStanding:
    """What a model's ideas have brought: `ideas` whose variants were judged, the `gain` of all of them
    together (log of the best variant's speedup over its parent's, where it is one), and their `dollars`."""

    ideas: int = 0
    gain: float = 0.0
    dollars: float = 0.0


class ModelChoice(Protocol):
    """Decides by what there is; equal arguments give equal answers."""

    def pick(self, standings: Mapping[str, ModelStanding], ideas: int, rng: random.Random) -> Counter[str]:
        """How many of so many ideas each of the models is asked for."""
        ...


class Fixed:
    """By weights (1 where none is given), drawn anew each time. Raises ValueError for a negative one, or
    when all are 0."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        if any(weight < 0 for weight in self._weights.values()):
            raise ValueError(f"weights are {self._weights}; none may be negative")

    def pick(self, standings: Mapping[str, ModelStanding], ideas: int, rng: random.Random) -> Counter[str]:
        """See `ModelChoice`."""
        names = sorted(standings)
        weights = [self._weights.get(name, 1.0) for name in names]
        return Counter(rng.choices(names, weights if any(weights) else None, k=ideas))


class Bandit:
    """UCB1 (Auer, Cesa-Bianchi, Fischer 2002) on what an idea gained per dollar: what a model gained on
    average, plus `exploration` times its uncertainty, over what one of its ideas costs. Models that were
    never asked come first. Where nothing costs anything, the gain alone decides.
    """

    def __init__(self, exploration: float = 0.2) -> None:
        if exploration < 0:
            raise ValueError(f"exploration is {exploration}; it must not be negative")
        self._exploration = exploration

    def pick(self, standings: Mapping[str, ModelStanding], ideas: int, rng: random.Random) -> Counter[str]:
        """See `ModelChoice`. Within one answer each idea counts as tried, with the average gain."""
        asked: Counter[str] = Counter()
        for _ in range(ideas):
            total = sum(each.ideas for each in standings.values()) + asked.total()
            names = sorted(standings)
            rng.shuffle(names)
            asked[max(names, key=lambda name: self._score(standings, name, asked[name], total))] += 1
        return asked

    def _score(self, standings: Mapping[str, ModelStanding], name: str, asked: int, total: int) -> float:
        standing = standings[name]
        tries = standing.ideas + asked
        if not tries:
            return math.inf
        gain = standing.gain / standing.ideas if standing.ideas else 0.0
        bound = gain + self._exploration * math.sqrt(2 * math.log(total) / tries)
        return bound / self._cost(standings, name)

    def _cost(self, standings: Mapping[str, ModelStanding], name: str) -> float:
        """Of one idea, against that of the dearest model's; not below 1 %, so that a free model does not win
        whatever it has to say."""
        costs = {n: s.dollars / s.ideas if s.ideas else 0.0 for n, s in standings.items()}
        dearest = max(costs.values())
        return max(0.01, costs[name] / dearest) if dearest else 1.0


def standings(
    models: Sequence[str],
    outcomes: Sequence[Outcome],
    dollars: Mapping[str, float],
    speedups: Mapping[str, float],
) -> dict[str, ModelStanding]:
    """What each of the models has brought. `dollars` by model; `speedups` of all seeds by their ids: an idea
    on the reference, or on a seed that is not among them, is held against 1."""
    ideas: Counter[str] = Counter()
    gains: Counter[str] = Counter()
    for outcome in outcomes:
        model = outcome.idea.model
        if outcome.variants:
            ideas[model] += 1
        if outcome.best is not None and outcome.best.evaluation is not None:
            before = speedups.get(outcome.idea.parent) or 1.0
            gains[model] += max(0.0, math.log(outcome.best.evaluation.speedup / before))  # type: ignore[assignment]
    return {
        name: ModelStanding(ideas=ideas[name], gain=gains[name], dollars=dollars.get(name, 0.0))
        for name in models
    }
