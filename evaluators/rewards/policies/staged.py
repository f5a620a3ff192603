"""Rewards the stages that a completion reaches."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.records.evaluation import Evaluation, Status
from evaluators.rewards.reward import Reward, is_correct, is_masked


@dataclass(frozen=True, kw_only=True)
class StagedReward:
    """A reward for the last stage that a completion reached: it has a kernel, the kernel was built, it is
    correct, it is significantly faster than eager PyTorch. For the beginning of training, when almost nothing
    is correct. A kernel that was rejected for cheating earns nothing; others that cheat may be found to be
    merely incorrect and then earn the first two stages, so set those to 0 once the model writes correct
    kernels.

    Attributes:
        parsed: The reward of a completion with a kernel.
        built: That of a kernel that was built.
        correct: That of a correct kernel.
        faster: That of a correct kernel whose speedup's interval lies above 1.

    Raises:
        ValueError: The rewards are not in order.
    """

    needs_parent = False
    parsed: float = 0.05
    built: float = 0.1
    correct: float = 0.5
    faster: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.parsed <= self.built <= self.correct <= self.faster:
            raise ValueError("the rewards must satisfy 0 <= parsed <= built <= correct <= faster")

    def reward(self, evaluation: Evaluation | None, parent: Evaluation | None = None) -> Reward:
        """See `RewardPolicy`."""
        if is_masked(evaluation):
            return Reward(value=None)
        if evaluation is None or evaluation.status is Status.REJECTED:
            return Reward(value=0.0, components={"stage": 0.0})
        if is_correct(evaluation):
            stage = 4 if evaluation.speedup_low > 1 else 3
        else:
            stage = 1 if evaluation.status is Status.COMPILE_ERROR else 2
        values = (0.0, self.parsed, self.built, self.correct, self.faster)
        return Reward(value=values[stage], components={"stage": float(stage)})
