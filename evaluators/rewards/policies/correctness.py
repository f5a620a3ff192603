"""Rewards correct kernels."""

from __future__ import annotations

from evaluators.records.evaluation import Evaluation
from evaluators.rewards.reward import Reward, is_correct, is_masked


class CorrectnessReward:
    """1 for a correct kernel, 0 for any other completion. For a model that writes few correct kernels yet,
    for which speed would be noise."""

    needs_parent = False

    def reward(self, evaluation: Evaluation | None, parent: Evaluation | None = None) -> Reward:
        """See `RewardPolicy`."""
        if is_masked(evaluation):
            return Reward(value=None)
        correct = float(is_correct(evaluation))
        return Reward(value=correct, components={"correct": correct})
