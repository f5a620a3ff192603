"""Rewards how close a kernel comes to the machine's limit."""

from __future__ import annotations

from evaluators.records.evaluation import Evaluation
from evaluators.rewards.reward import Reward, is_correct, is_masked


class RooflineShareReward:
    """0 unless the kernel is correct; for a correct one, its share of the roofline, at most 1. Comparable
    across problems, because it does not depend on how slow eager PyTorch is. A correct kernel whose
    roofline is unknown has no reward."""

    needs_parent = False

    def reward(self, evaluation: Evaluation | None, parent: Evaluation | None = None) -> Reward:
        """See `RewardPolicy`."""
        if is_masked(evaluation):
            return Reward(value=None)
        share = evaluation.roofline_share if evaluation else None
        if not is_correct(evaluation):
            return Reward(value=0.0, components={"correct": 0.0})
        if share is None:
            return Reward(value=None, components={"correct": 1.0})
        return Reward(value=min(share, 1.0), components={"correct": 1.0, "roofline_share": share})
