"""Rewards the speedup over eager PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.records.evaluation import Evaluation, Timing
from evaluators.rewards.reward import Reward, certain_log2, is_correct, is_masked


@dataclass(frozen=True, kw_only=True)
class LogSpeedupReward:
    """0 unless the kernel is correct; for a correct one, a number in (0, 1] that grows with the logarithm
    of its speedup over eager PyTorch. A speedup whose interval contains 1 counts as none, so that noise is
    not rewarded.

    The logarithm makes each doubling worth the same, as it is to the kernel's user, and keeps one lucky
    problem from dominating a batch. The limits do so, too. Every correct kernel earns more than any wrong
    one.

    Attributes:
        low: The least binary logarithm that counts, above -1: slower kernels earn the same as this one.
        high: The largest binary logarithm that counts; it earns 1. 4 is a speedup of 16.

    Raises:
        ValueError: The limits are not in order around 0.
    """

    needs_parent = False
    low: float = -0.9
    high: float = 4.0

    def __post_init__(self) -> None:
        if not -1 < self.low <= 0 < self.high:
            raise ValueError(
                f"reward.low={self.low:g} reward.high={self.high:g} must satisfy -1 < low <= 0 < high"
            )

    def reward(self, evaluation: Evaluation | None, parent: Evaluation | None = None) -> Reward:
        """See `RewardPolicy`."""
        if is_masked(evaluation, parent):
            return Reward(value=None)
        if evaluation is None or not is_correct(evaluation):
            return Reward(value=0.0, components={"correct": 0.0})
        gain = self._gain(evaluation.timing, parent) if evaluation.timing else 0.0
        value = (1 + min(max(gain, self.low), self.high)) / (1 + self.high)
        return Reward(value=value, components={"correct": 1.0, "log2_gain": gain})

    def _gain(self, timing: Timing, parent: Evaluation | None) -> float:
        """In powers of two; 0 if it may be noise."""
        return certain_log2(timing.speedup, timing.speedup_low, timing.speedup_high)
