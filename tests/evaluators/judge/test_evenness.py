"""Calls that a kernel itself makes slow are distinguished from those that the machine delays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evaluators.judge.timing.evenness import Evenness, evenness, tail
from evaluators.records.timing import Block

OVERHEAD_MS, SLACK_MS = 0.5, 0.1


def blocks(count: int, calls: int, call_ms: Callable[[int], float], waited_ms: float = 0.0) -> list[Block]:
    """Blocks of calls made one by one, which take what the function returns for their number."""
    found = []
    for block in range(count):
        walls = tuple(call_ms(block * calls + n) + OVERHEAD_MS for n in range(calls))
        waits = tuple(waited_ms if each > 10 else 0.0 for each in walls)
        found.append(Block(calls=calls, wall_ms=sum(walls), walls_ms=walls, waited_ms=waits))
    return found


def seen(kernel: list[Block], eager: list[Block]) -> Evenness:
    return evenness(kernel, eager, overhead_ms=OVERHEAD_MS, slack_ms=SLACK_MS)


EVEN = blocks(20, 3, lambda n: 1.5)


def every(period: int, slow_ms: float) -> Callable[[int], float]:
    return lambda n: slow_ms if n % period == 0 else 1.5


def test_calls_that_take_equally_long_are_even() -> None:
    found = seen(EVEN, blocks(12, 3, lambda n: 2.0))
    assert (found.calls, found.slow, found.by_chance) == (60, 0, 1.0)
    assert not found.uneven
    assert not found.undecided
    assert found.reason is None
    assert found.factor == pytest.approx(1.0)


@pytest.mark.parametrize("period", [3, 4])
def test_a_kernel_that_sleeps_in_some_calls_is_rejected(period: int) -> None:
    found = seen(blocks(20, 3, every(period, 61.5)), EVEN)
    assert found.uneven
    assert found.reason is not None
    assert f"{60 // period} of 60 took 61.5 ms" in found.reason
    assert "the median is 1.5 ms" in found.reason
    assert found.factor * found.median_ms == pytest.approx(1.5 + 60 / period)


def test_a_kernel_that_waits_for_a_core_in_some_calls_is_timed_by_the_mean() -> None:
    """A kernel's threads may be delayed while the baseline's single one is not."""
    found = seen(blocks(12, 3, every(3, 61.5), waited_ms=58.0), EVEN)
    assert found.uneven
    assert found.reason is None
    assert found.factor * found.median_ms == pytest.approx(21.5)


def test_no_kernel_is_rejected_if_waits_are_unknown() -> None:
    whole = [Block(calls=3, wall_ms=3 * (61.5 if n % 3 == 0 else 1.5)) for n in range(40)]
    found = evenness(whole, [Block(calls=3, wall_ms=4.5)] * 40, overhead_ms=0.0, slack_ms=0.01)
    assert (found.calls, found.slow) == (40, 14)
    assert found.uneven
    assert found.reason is None


def test_delays_that_the_baseline_shows_too_are_the_machines() -> None:
    found = seen(blocks(12, 3, every(3, 61.5)), blocks(12, 3, every(4, 61.5)))
    assert not found.uneven


def test_times_far_longer_than_all_delays_are_the_kernels_own() -> None:
    rng = np.random.default_rng(5)

    def busy(own: Callable[[int], float]) -> list[Block]:
        return blocks(27, 1, lambda n: own(n) + rng.exponential(20.0))

    found = seen(busy(every(3, 301.5)), busy(lambda n: 1.5))
    assert found.uneven
    assert found.slow == 9


def test_one_long_delay_is_not_the_kernels_doing() -> None:
    found = seen(blocks(12, 10, lambda n: 61.5 if n < 20 else 1.5), blocks(12, 10, lambda n: 1.5))
    assert not found.uneven
    assert not found.undecided


def test_a_few_slow_calls_require_more_samples() -> None:
    found = seen(blocks(6, 3, every(5, 61.5)), blocks(6, 3, lambda n: 1.5))
    assert found.undecided
    assert not found.uneven


def test_few_calls_that_differ_a_little_are_left_to_the_median() -> None:
    assert seen(blocks(12, 3, every(3, 2.0)), EVEN).slow == 0


@pytest.mark.slow
@pytest.mark.parametrize("hold_ups", [0.05, 0.3, 0.6])
def test_honest_kernels_on_a_busy_machine_are_even(hold_ups: float) -> None:
    """No more often than the test's level, with the calls of a quick and of a thorough measurement."""
    rng = np.random.default_rng(1)

    def busy(count: int, call_ms: float) -> list[Block]:
        return blocks(count, 3, lambda n: call_ms + (rng.exponential(4.0) if rng.random() < hold_ups else 0))

    for count in (6, 40):
        found = [seen(busy(count, 1.5), busy(count, 1.5)).uneven for _ in range(1000)]
        assert sum(found) <= 20


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((3, 3, 3, 0), 1 / 20), ((3, 3, 0, 3), 1.0), ((2, 2, 1, 1), 5 / 6), ((10, 10, 0, 0), 1.0)],
)
def test_the_probability_by_chance(numbers: tuple[int, int, int, int], expected: float) -> None:
    assert tail(*numbers) == pytest.approx(expected)
