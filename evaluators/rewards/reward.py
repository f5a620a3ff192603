"""What a reward policy is, and what all policies share. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from evaluators.base.json_record import JsonRecord
from evaluators.records.evaluation import Evaluation, Status


@dataclass(frozen=True, kw_only=True)
class Reward(JsonRecord):
    """The reward of one completion.

    Attributes:
        value: The reward; None if there can be none, because the evaluator and not the kernel failed. Mask
            such a completion, or ask again.
        components: What the value was made of, by name, to log next to it.
    """

    value: float | None
    components: Mapping[str, float] = field(default_factory=dict)


class RewardPolicy(Protocol):
    """Turns verdicts into rewards (see `configs/reward/`). The same verdict always has the same reward."""

    needs_parent: bool
    """Whether it rewards the improvement over a kernel that the request names."""

    def reward(self, evaluation: Evaluation | None, parent: Evaluation | None = None) -> Reward:
        """The reward for a verdict.

        Args:
            evaluation: The verdict on the completion's kernel; None if the completion has no kernel.
            parent: The verdict on the kernel that the completion improves or repairs; None without one.

        Returns:
            The reward; its value is None if either verdict says nothing about its kernel.
        """
        ...


def is_masked(*evaluations: Evaluation | None) -> bool:
    """Whether one of the verdicts says nothing about its kernel, so that there is no reward."""
    return any(each is not None and not each.status.is_of_the_kernel for each in evaluations)


def is_correct(evaluation: Evaluation | None) -> bool:
    """Whether the completion's kernel is correct."""
    return evaluation is not None and evaluation.status is Status.CORRECT


def certain_log2(ratio: float, low: float, high: float) -> float:
    """The binary logarithm of a ratio of times; 0 if its 95 % interval [low, high] contains 1, so that
    noise is not rewarded."""
    return 0.0 if low <= 1 <= high else math.log2(ratio)
