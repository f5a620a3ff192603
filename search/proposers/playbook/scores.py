"""The expected gain of an idea: the catalogue's prior, corrected by this run's measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from search.proposers.playbook.move import Move
from search.proposers.playbook.plan import CROSS_OVER, NAIVE, RESTART, RETUNE, TOGETHER, Draft, Plan
from search.records.tree import Category, Outcome, Seed, Variant, speedups_of

GAINS = {TOGETHER: math.inf, NAIVE: 1000.0, RETUNE: 0.9, CROSS_OVER: 0.95, RESTART: 0.4}
"""Expected gains of ideas that are not moves of the catalogue. All moves together come first, because a
problem of a large suite gets few evaluations, and the naive kernel second. Untried moves come before
retuning, and a fresh start comes last."""
FAILED = math.log(0.5)
"""The log gain of an idea without a correct kernel."""
PRIOR_WEIGHT = 1.0
"""The weight of a move's prior, in measurements."""
CATEGORY_SHRINKAGE = 3.0
"""Ideas of average gain that are added to a category's own ideas."""
CATEGORY_WEIGHT = 0.5


class Scores:
    """The expected log gain of drafts with the parent `seed`, given this history."""

    def __init__(self, moves: Sequence[Move], history: Sequence[Outcome], seed: Seed | None) -> None:
        self._priors = {**GAINS, **{move.name: move.gain for move in moves}}
        self._gains = _measured(history, seed)

    def __call__(self, draft: Draft) -> float:
        """The sum over the draft's moves, plus a bonus for a category with good results."""
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

    Gains are ratios of speedups. Each speedup is relative to eager in the same session, so a machine that
    has become slower does not count against an idea. Ideas from the reference are compared with the naive
    kernel.
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
