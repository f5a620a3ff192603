"""How much an idea is expected to bring: the catalogue's word, corrected by what this run measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from search.proposers.playbook.move import Move
from search.proposers.playbook.plan import CROSS_OVER, NAIVE, RESTART, RETUNE, TOGETHER, Draft, Plan
from search.records.tree import Category, Outcome, Seed, Variant, speedups_of

GAINS = {TOGETHER: math.inf, NAIVE: 1000.0, RETUNE: 0.9, CROSS_OVER: 0.95, RESTART: 0.4}
"""Expected gains of what is in no catalogue; moves bring their own. All moves together come first, since a
problem among many has few evaluations, then the naive kernel; moves that were not tried come before retuning,
and everything before a fresh start."""
FAILED = math.log(0.5)
"""What an idea counts for that made no correct kernel."""
PRIOR_WEIGHT = 1.0
"""How many measurements a move's expected gain counts for."""
CATEGORY_SHRINKAGE = 3.0
"""How many ideas of average gain are added to a category's own."""
CATEGORY_WEIGHT = 0.5


class Scores:
    """The log gain to expect of a draft, after this history. `seed` is the draft's parent."""

    def __init__(self, moves: Sequence[Move], history: Sequence[Outcome], seed: Seed | None) -> None:
        self._priors = {**GAINS, **{move.name: move.gain for move in moves}}
        self._gains = _measured(history, seed)

    def __call__(self, draft: Draft) -> float:
        """The sum over the draft's moves, and a bonus for categories that paid."""
        return sum(map(self._of_move, draft.moves)) + CATEGORY_WEIGHT * self._of_category(draft.category)

    def _of_move(self, name: str) -> float:
        seen = [gain for names, _, gain in self._gains if name in names]
        return (math.log(self._priors[name]) * PRIOR_WEIGHT + sum(seen)) / (PRIOR_WEIGHT + len(seen))

    def _of_category(self, category: Category) -> float:
        if not self._gains:
            return 0.0
        mean = fmean(gain for _, _, gain in self._gains)
        excess = [gain - mean for _, own, gain in self._gains if own is category]
        return sum(excess) / (len(excess) + CATEGORY_SHRINKAGE)


def _measured(history: Sequence[Outcome], seed: Seed | None) -> list[tuple[tuple[str, ...], Category, float]]:
    """Moves, category and log gain per move of each evaluated idea whose parent's speedup is known.

    Gains are ratios of speedups: each is paired with eager's time in its own session, so that a machine
    that has become slower since does not count against an idea. Steps from the reference are compared
    with the naive kernel.
    """
    plans = [(outcome, plan) for outcome in history if (plan := Plan.from_json(outcome.idea.plan))]
    kernels: list[Seed | Variant] = [variant for outcome in history for variant in outcome.variants]
    kernels += [seed] if seed else []
    timed = [each for each in kernels if each.evaluation and each.evaluation.timing]
    speeds = speedups_of(timed, history)
    naive = [outcome.best for outcome, plan in plans if plan.moves == (NAIVE,) and outcome.best]
    if naive:
        speeds[""] = speeds[naive[0].id]
    gains = []
    for outcome, plan in plans:
        best, parent = outcome.best, outcome.idea.parent
        done = bool(outcome.variants) and all(each.evaluation for each in outcome.variants)
        if plan.moves == (NAIVE,) or not done or (best and parent not in speeds):
            continue
        gain = math.log(speeds[best.id] / speeds[parent]) if best else FAILED
        gains.append((plan.moves, outcome.idea.category, gain / len(plan.moves)))
    return gains
