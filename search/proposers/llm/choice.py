"""Chooses which of several models to ask for an idea."""

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
    """The results of a model's ideas: `ideas` with judged variants, their summed `gain` (log of the best
    variant's speedup over its parent's, if positive), and their cost in `dollars`."""

    ideas: int = 0
    gain: float = 0.0
    dollars: float = 0.0


class ModelChoice(Protocol):
    """Chooses from the standings alone; equal arguments give equal answers."""

    def pick(self, standings: Mapping[str, ModelStanding], ideas: int, rng: random.Random) -> Counter[str]:
        """How many of the `ideas` each model is asked for."""
        ...


class Fixed:
    """Draws by weights (1 if not given). Raises ValueError for a negative weight."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        if any(weight < 0 for weight in self._weights.values()):
            raise ValueError(f"choice.weights is {self._weights}; each weight must be 0 or more")

    def pick(self, standings: Mapping[str, ModelStanding], ideas: int, rng: random.Random) -> Counter[str]:
        """See `ModelChoice`."""
        names = sorted(standings)
        weights = [self._weights.get(name, 1.0) for name in names]
        return Counter(rng.choices(names, weights if any(weights) else None, k=ideas))


class Bandit:
    """UCB1 (Auer, Cesa-Bianchi, Fischer 2002) on the gain per dollar: a model's average gain, plus
    `exploration` times its uncertainty, divided by the cost of one of its ideas. Models that were never asked
    come first. If nothing costs anything, the gain alone decides."""

    def __init__(self, exploration: float = 0.2) -> None:
        if exploration < 0:
            raise ValueError(f"choice.exploration is {exploration}; it must be 0 or more")
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
        """The cost of one idea relative to the most expensive model's, at least 1 %, so that a free model
        does not win regardless of its ideas."""
        costs = {n: s.dollars / s.ideas if s.ideas else 0.0 for n, s in standings.items()}
        dearest = max(costs.values())
        return max(0.01, costs[name] / dearest) if dearest else 1.0


def standings(
    models: Sequence[str],
    outcomes: Sequence[Outcome],
    dollars: Mapping[str, float],
    speedups: Mapping[str, float],
) -> dict[str, ModelStanding]:
    """The standing of each model. `dollars` is by model, `speedups` by seed id; an idea for the reference, or
    for an unknown seed, is compared with 1."""
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
