"""Rewards the improvement over another kernel, for multi-turn training."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.records.evaluation import Evaluation, Timing
from evaluators.rewards.policies.log_speedup import LogSpeedupReward
from evaluators.rewards.reward import certain_log2


@dataclass(frozen=True, kw_only=True)
class ImprovementReward(LogSpeedupReward):
    """Like `LogSpeedupReward`, but with the speedup over the parent, the kernel that the completion
    improves. The rewards of a conversation then do not pay twice for the same speedup. If the two kernels'
    intervals overlap, the improvement counts as none. A parent that is not correct counts as eager PyTorch,
    so that a repair earns what the repaired kernel is worth.
    """

    needs_parent = True
    high: float = 2.0

    def _gain(self, timing: Timing, parent: Evaluation | None) -> float:
        before = parent.timing if parent else None
        if before is None:
            return super()._gain(timing, None)
        low, high = timing.speedup_low / before.speedup_high, timing.speedup_high / before.speedup_low
        return certain_log2(timing.speedup / before.speedup, low, high)
