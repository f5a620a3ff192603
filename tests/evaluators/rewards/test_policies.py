"""Every policy: what it pays for, and what it does not."""

from __future__ import annotations

import functools
import math

import pytest

from evaluators.app.command import build, compose_config
from evaluators.app.config import options_of
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Roofline, Status
from evaluators.rewards.__main__ import RewardConfig
from evaluators.rewards.policies.improvement import ImprovementReward
from evaluators.rewards.policies.log_speedup import LogSpeedupReward
from evaluators.rewards.policies.roofline_share import RooflineShareReward
from evaluators.rewards.policies.staged import StagedReward
from evaluators.rewards.reward import RewardPolicy
from tests.evaluators.rewards.verdicts import correct, failed

POLICIES = options_of("reward")
WRONG = [each for each in Status if each.is_of_the_kernel and each not in (Status.CORRECT, Status.OUTPACED)]


@functools.cache
def policy(name: str, *overrides: str) -> RewardPolicy:
    """The policy of a config."""
    found: RewardPolicy = build(compose_config(RewardConfig, [f"reward={name}", *overrides]).reward)
    return found


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("status", [Status.INFRASTRUCTURE_ERROR, Status.UNFIT_REFERENCE])
def test_the_evaluators_own_failure_is_no_reward(name: str, status: Status) -> None:
    assert policy(name).reward(failed(status)).value is None


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"staged"}))
@pytest.mark.parametrize("status", WRONG)
def test_what_is_not_correct_earns_nothing(name: str, status: Status) -> None:
    assert policy(name).reward(failed(status)).value == 0
    assert policy(name).reward(None).value == 0


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"roofline_share"}))
@pytest.mark.parametrize("speedup", [0.001, 0.5, 1.0, 3.0, 1000.0])
def test_every_correct_kernel_earns_something(name: str, speedup: float) -> None:
    value = policy(name).reward(correct(speedup)).value
    assert value is not None
    assert 0 < value <= 1


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"correctness", "roofline_share"}))
def test_faster_kernels_earn_no_less(name: str) -> None:
    values = [policy(name).reward(correct(speedup)).value for speedup in (0.2, 0.9, 1.0, 1.2, 2.0, 8.0, 64.0)]
    assert values == sorted(values, key=lambda value: value or 0)
    assert values[0] != values[-1]


def test_noise_earns_what_no_gain_does() -> None:
    uncertain = LogSpeedupReward().reward(correct(1.3, width=0.4))
    assert uncertain.value == LogSpeedupReward().reward(correct(1.0)).value == pytest.approx(0.2)
    assert uncertain.components == {"correct": 1.0, "log2_gain": 0.0}
    assert LogSpeedupReward().reward(correct(2.0)).value == pytest.approx(0.4)


def test_an_untimed_correct_kernel_earns_what_no_gain_does() -> None:
    assert LogSpeedupReward().reward(Evaluation(status=Status.CORRECT)).value == pytest.approx(0.2)


def test_an_improvement_is_over_the_parent() -> None:
    found = ImprovementReward().reward(correct(4.0), correct(2.0))
    assert found.components["log2_gain"] == pytest.approx(1.0)
    assert ImprovementReward().reward(correct(2.05), correct(2.0)).components["log2_gain"] == 0
    assert ImprovementReward().reward(correct(1.0), correct(2.0)).components["log2_gain"] == pytest.approx(
        -1.0
    )


def test_a_repair_earns_what_the_kernel_is_worth() -> None:
    repaired = ImprovementReward().reward(correct(2.0), failed(Status.CRASHED))
    assert repaired.components["log2_gain"] == pytest.approx(1.0)


def test_a_parent_without_a_verdict_is_no_reward() -> None:
    assert ImprovementReward().reward(correct(2.0), failed(Status.INFRASTRUCTURE_ERROR)).value is None


def test_the_share_of_the_roofline_is_limited() -> None:
    roofline = Roofline(bytes=1, operations=1, floor_ms=0.25, bound="memory")
    verdict = correct(2.0)
    assert RooflineShareReward().reward(verdict).value is None
    known = Evaluation(status=Status.CORRECT, timing=verdict.timing, roofline=roofline)
    assert RooflineShareReward().reward(known).value == pytest.approx(0.5)
    above = Evaluation(status=Status.CORRECT, timing=correct(8.0).timing, roofline=roofline)
    assert RooflineShareReward().reward(above).value == 1


def test_stages_are_paid_in_order() -> None:
    verdicts = [
        None,
        failed(Status.COMPILE_ERROR),
        failed(Status.INCORRECT),
        correct(1.0),
        correct(2.0),
    ]
    values = [StagedReward().reward(each).value for each in verdicts]
    assert values == [0, 0.05, 0.1, 0.5, 1]
    assert StagedReward().reward(failed(Status.REJECTED)).value == 0, "a cheat earns nothing"


@pytest.mark.parametrize(
    ("name", "override"), [("log_speedup", "reward.low=-1.5"), ("staged", "reward.correct=0.01")]
)
def test_wrong_keys_are_refused(name: str, override: str) -> None:
    with pytest.raises(UsageError, match="must satisfy"):
        policy(name, override)


def test_a_limit_can_be_set() -> None:
    value = policy("log_speedup", "reward.high=1").reward(correct(64.0)).value
    assert value is not None and math.isclose(value, 1.0)
