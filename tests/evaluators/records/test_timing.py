"""The statistics: intervals have their nominal coverage, honest measurements pass the checks, false ones
fail."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.records.timing import (
    FEW_PAIRS,
    MIN_PAIRS,
    MORE_PAIRS,
    MOST_CPU_CALLS,
    MOST_TURNS,
    RESOLUTION_MS,
    STOPPING_COUNTS,
    SYSTEMATIC,
    SYSTEMATIC_MS,
    SYSTEMATIC_SHARE,
    Block,
    Overhead,
    Plan,
    batched,
    credible_ms,
    delivers,
    fastest,
    interval,
    median_interval,
    paired_speedup,
    sabotaged,
    smoothed,
    suspicious,
)

# All have median 1, which an interval should contain.
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, ...], float], np.ndarray]] = {
    "normal": lambda rng, shape, s: 1 + s * rng.standard_normal(shape),
    "lognormal": lambda rng, shape, s: np.exp(s * rng.standard_normal(shape)),
    "exponential": lambda rng, shape, s: 1 + s * (rng.exponential(size=shape) - math.log(2)),
    "uniform": lambda rng, shape, s: 1 + 2 * s * (rng.random(shape) - 0.5),
    "laplace": lambda rng, shape, s: 1 + s * rng.laplace(size=shape),
    "spiky": lambda rng, shape, s: (
        1 + s * rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 10, 1)
    ),
}
PLAN = Plan(block_ms=10.0, precision=0.02, max_s=1.0)


def ranks(n: int) -> tuple[int, int]:
    """Which order statistics of n samples bound the interval."""
    _, low, high = median_interval([float(i) for i in range(n)])
    return int(low), int(high)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [6, 8, 15, 48])
def test_an_interval_covers_the_median(distribution: str, n: int) -> None:
    rng = np.random.default_rng(n)
    ordered = np.sort(DISTRIBUTIONS[distribution](rng, (20_000, n), 0.3), axis=1)
    low, high = ranks(n)
    covered = (ordered[:, low] <= 1) & (ordered[:, high] >= 1)
    assert covered.mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("spread", [0.015, 0.025, 0.035, 0.05, 0.07, 0.1])
def test_an_interval_covers_the_median_if_sampling_stops_early(distribution: str, spread: float) -> None:
    """The reference against itself is 1 within its interval in at least 94 of 100 tries, although sampling
    stops as soon as the interval is narrow. `enough` is asked on a part, the rest follows its rule."""
    rng = np.random.default_rng(7)
    tries = 10_000
    ratios = DISTRIBUTIONS[distribution](rng, (tries, STOPPING_COUNTS[-1]), spread)
    done, covered = np.zeros(tries, bool), np.zeros(tries, bool)
    stopped_at = np.zeros(tries, int)
    for n in STOPPING_COUNTS:
        ordered = np.sort(ratios[:, :n], axis=1)
        low, high = (ordered[:, rank] for rank in ranks(n))
        median = np.median(ordered, axis=1)
        deviation = 1.48 * np.median(abs(ordered - median[:, None]), axis=1) / median
        widening = 1 + np.maximum(SYSTEMATIC, SYSTEMATIC_SHARE * deviation)
        width = high * widening - low / widening
        narrow = width / 2 < PLAN.precision * median
        stops = ~done & (narrow | (n == STOPPING_COUNTS[-1]))
        covered[stops] = ((low <= 1) & (high >= 1))[stops]
        stopped_at[stops] = n
        done |= stops
    assert covered.mean() >= 0.94
    for row in range(50):
        n = next(n for n in range(1, 99) if PLAN.enough(ratios[row, :n].tolist(), 0.0))
        assert n == stopped_at[row]


@pytest.mark.slow
@given(st.lists(st.floats(1e-3, 1e3), min_size=MIN_PAIRS, max_size=60), st.randoms())
def test_an_interval_contains_its_median_in_any_order(values: list[float], random: object) -> None:
    median, low, high = median_interval(values)
    assert min(values) <= low <= median <= high <= max(values)
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert median_interval(shuffled) == (median, low, high)


def test_more_confidence_is_never_narrower() -> None:
    values = [float(i) for i in range(40)]
    widths = [high - low for _, low, high in (median_interval(values, c) for c in (0.5, 0.9, 0.95, 0.99))]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


@pytest.mark.parametrize("n", range(MIN_PAIRS))
def test_too_few_samples_have_no_interval(n: int) -> None:
    with pytest.raises(ValueError, match=f"{n} samples"):
        median_interval([1.0] * n)


def test_sampling_continues_until_there_is_an_interval() -> None:
    assert not PLAN.enough([1.0] * (MIN_PAIRS - 1), elapsed_s=1e9)
    assert PLAN.enough([1.0] * MIN_PAIRS, elapsed_s=0.0)


def test_when_the_time_is_over_few_pairs_that_agree_are_enough() -> None:
    alike, apart = [1.0, 1.1] * 10, [1.0, 1.6] * 10
    assert not PLAN.enough(alike[:6], elapsed_s=0.9)
    assert PLAN.enough(alike[:6], elapsed_s=1.1)
    assert [PLAN.enough(apart[:n], elapsed_s=1.1) for n in (6, 8, FEW_PAIRS - 1)] == [False] * 3
    assert PLAN.enough(apart[:FEW_PAIRS], elapsed_s=1.1)


def test_a_longer_plan() -> None:
    assert not PLAN.lengthened(3).enough([1.0, 2.0] * 10, elapsed_s=2.9)
    assert PLAN.lengthened(3).enough([1.0, 2.0] * 10, elapsed_s=3.1)


def test_an_uneven_kernel_is_sampled_longer() -> None:
    assert PLAN.may_go_on(STOPPING_COUNTS[-1] - 1, 2.9)
    assert not PLAN.may_go_on(STOPPING_COUNTS[-1], 2.9)
    assert PLAN.may_go_on(MORE_PAIRS - 1, 1e9)
    assert not PLAN.may_go_on(MORE_PAIRS, 3.1)


def test_two_kernels_of_one_session() -> None:
    """A disturbance of a turn affects both kernels alike."""
    turns = [1.0, 5.0, 2.0, 1.0, 9.0, 1.0, 3.0, 1.0]
    ratio, low, high = paired_speedup(turns, [2 * each for each in turns])
    assert ratio == pytest.approx(2.0)
    widening = (1 + SYSTEMATIC) * (1 + SYSTEMATIC_MS / 1.5)  # the median of the turns
    assert (low, high) == (pytest.approx(2 / widening), pytest.approx(2 * widening))
    back, _, _ = paired_speedup([2 * each for each in turns], turns)
    assert back == pytest.approx(0.5)
    with pytest.raises(ValueError):
        paired_speedup(turns, turns[:-1])
    with pytest.raises(ValueError, match="5 samples"):
        paired_speedup(turns[:5], turns[:5])


def test_sampling_stops_at_either_cap() -> None:
    wide = [1.0, 2.0] * 50
    assert not PLAN.enough(wide[:20], elapsed_s=0.9)
    assert PLAN.enough(wide[:20], elapsed_s=1.1)
    assert not PLAN.enough(wide[: STOPPING_COUNTS[-1] - 1], elapsed_s=0.9)
    assert PLAN.enough(wide[: STOPPING_COUNTS[-1]], elapsed_s=0.0)


def test_only_some_counts_stop_early() -> None:
    assert [n for n in range(6, 48) if PLAN.enough([1.0] * n, 0.0)] == list(STOPPING_COUNTS[:-1])


def test_precision_is_relative() -> None:
    ratios = [1.0, 1.01, 1.0, 1.01, 1.0, 1.01, 1.0, 1.01]
    assert PLAN.enough(ratios, 0.0)
    assert PLAN.enough([100 * r for r in ratios], 0.0)
    assert not replace(PLAN, precision=0.01).enough([0.01 * r for r in ratios], 0.0)


@given(st.floats(0, 1e6), st.integers(1, 100), st.floats(0.1, 100))
def test_a_block_has_between_one_call_and_the_capacity(call_ms: float, capacity: int, block: float) -> None:
    plan = replace(PLAN, block_ms=block)
    calls = plan.calls(call_ms, capacity)
    assert 1 <= calls <= capacity
    if call_ms > 10 * block:
        assert calls == 1
    elif calls < capacity:
        assert calls * call_ms >= block * (1 - 1e-9), "the calls last as long as was asked"


@pytest.mark.slow
@given(st.floats(0, 1e3), st.floats(0, 1e3), st.integers(1, 100))
def test_slower_modules_get_no_more_calls(a: float, b: float, capacity: int) -> None:
    assert PLAN.calls(max(a, b), capacity) <= PLAN.calls(min(a, b), capacity)


def test_on_a_cpu_a_block_of_short_calls_does_not_last() -> None:
    assert PLAN.calls(1e-3, 256) == 256
    assert PLAN.on("cuda") == PLAN
    assert PLAN.on("cpu").calls(1e-3, 256) == MOST_CPU_CALLS
    assert PLAN.on("cpu").calls(1e-3, 8) == 8
    assert replace(PLAN, most_calls=3).on("cpu").calls(1e-3, 256) == 3


@pytest.mark.slow
@given(st.integers(1, 1000), st.floats(1e-3, 1e3), st.floats(0, 1e3))
def test_a_calls_time_excludes_the_overhead(calls: int, true_ms: float, overhead_ms: float) -> None:
    block = Block(calls=calls, wall_ms=calls * true_ms + overhead_ms)
    assert block.call_ms(overhead_ms) == pytest.approx(true_ms, rel=1e-6, abs=1e-9)


def test_no_call_is_shorter_than_the_clocks_resolution() -> None:
    assert Block(calls=10, wall_ms=1.0).call_ms(1.5) == RESOLUTION_MS


@pytest.mark.parametrize("block_ms", [0.3, 1.0, 10.0])
def test_calls_as_slow_together_as_alone_are_not_suspicious(block_ms: float) -> None:
    """Alone, everything takes some 40 µs more to wake up, the reference too, and now and then far more."""
    singles = [block_ms + 0.04, block_ms + 0.05, block_ms + 7.0]
    assert not suspicious(singles, block_ms, 0.04, 0.01)
    assert suspicious([20 * each for each in singles], block_ms, 0.04, 0.01)


def test_a_slow_start_of_the_reference_excuses_the_kernel() -> None:
    assert not suspicious([1.0], 0.5, 1.0, 0.0)


def test_the_shortest_calls_stay_suspicious() -> None:
    assert suspicious([0.03], 0.03, 0.0, 0.01)


@pytest.mark.parametrize("call_ms", [0.003, 0.03, 0.3, 3.0])
def test_calls_as_fast_in_a_chain_as_in_a_block_are_fair(call_ms: float) -> None:
    assert batched(call_ms + 0.025, call_ms, 0.025, 0.01) is None
    assert batched(1.3 * call_ms + 0.025, call_ms, 0.020, 0.01) is None, "within the noise"


@pytest.mark.parametrize(("chain_ms", "block_ms"), [(1.0, 0.5), (0.2, 0.02), (0.06, 0.004), (10.0, 1.0)])
def test_calls_that_are_fast_only_together_were_batched(chain_ms: float, block_ms: float) -> None:
    reason = batched(chain_ms, block_ms, 0.025, 0.01)
    assert reason is not None
    assert f"{block_ms:g} ms" in reason
    assert "\n" not in reason


def test_a_baseline_that_slows_down_next_to_a_kernel_is_noticed() -> None:
    assert sabotaged([1.0, 1.1, 0.9], [1.0, 1.15, 1.1], 0.01) is None
    assert sabotaged([1.0, 1.1, 0.9], [1.0, 1.1, 1.9, 2.1, 2.0, 1.9], 0.01) is None, "busy for a while"
    reason = sabotaged([1.0, 1.1, 0.9], [1.5, 1.6, 1.4, 1.4], 0.01)
    assert reason is not None
    assert "1.4 ms instead of 1.1 ms" in reason


@pytest.mark.parametrize(
    ("longer_ms", "copied"),
    [
        ([2.9, 3.1], True),
        ([1.6, 1.7, 1.6, 1.7, 1.6, 1.7], True),
        ([2.9], None),
        ([1.6, 2.9], None),
        ([0.1] * 10, None),
        ([0.1] * 11, False),
        ([-2.0, 4.0] * 13, None),
    ],
)
def test_outputs_that_are_not_copied_are_noticed(longer_ms: list[float], copied: bool | None) -> None:
    assert delivers(longer_ms, 3.0) is copied


@pytest.mark.parametrize(("copies_ms", "wrong"), [(1.0, False), (0.0, True)])
def test_noise_as_large_as_the_copies_decides_nothing(copies_ms: float, wrong: bool) -> None:
    """As blocks of 64 calls of a few elements have on an H200, with outliers."""
    chance = random.Random(0)
    found = Counter()
    for _ in range(500):
        longer_ms: list[float] = []
        copied = None
        while copied is None and len(longer_ms) < 27:
            outlier = chance.choice((-1, 1)) * chance.expovariate(0.35) if chance.random() < 0.1 else 0.0
            longer_ms.append(chance.gauss(copies_ms, 0.7) + outlier)
            copied = delivers(longer_ms, 1.0)
        found[copied] += 1
    assert found[wrong] < (5 if copies_ms else 25)
    assert found[not wrong] > 300


def test_shared_buffers_have_room_for_a_block_of_the_fastest_possible_kernel() -> None:
    plan = Plan(block_ms=10.0, precision=0.02, max_s=1.0)
    assert plan.capacity(8.0, 8.0, 256) == 5, "four times as fast as the baseline"
    assert plan.capacity(8.0, 0.1, 256) == 100, "as fast as the floor"
    assert plan.capacity(8.0, 1e-9, 256) == 256
    assert plan.capacity(1000.0, 1000.0, 256) == 1


def test_overheads_are_smoothed_to_a_line() -> None:
    noisy = {n: Overhead(total_ms=0.3 + 0.1 * n, delivery_ms=0.05 * n) for n in (1, 2, 4, 8, 16, 32)}
    noisy[8] = Overhead(total_ms=50.0, delivery_ms=0.0)
    smooth = smoothed(noisy, [1, 8, 24, 32])
    assert list(smooth) == [1, 8, 24, 32]
    assert smooth[8].total_ms == pytest.approx(1.1, rel=0.05)
    assert smooth[24].total_ms == pytest.approx(2.7, rel=0.05), "between those that were measured"
    assert smooth[32].delivery_ms == pytest.approx(1.6, rel=0.05)
    only = smoothed({1: Overhead(total_ms=0.3, delivery_ms=0.1)}, [1])
    assert only == {1: Overhead(total_ms=0.3, delivery_ms=0.1)}


def test_an_interval_is_never_narrower_than_the_systematic_error() -> None:
    median, low, high = interval([2.0] * 8)
    assert (low, median, high) == (2.0 / (1 + SYSTEMATIC), 2.0, 2.0 * (1 + SYSTEMATIC))


@pytest.mark.parametrize(("call_ms", "off"), [(0.002, 0.1), (0.2, 0.001)])
def test_intervals_of_the_shortest_calls_are_wider(call_ms: float, off: float) -> None:
    for kernel_ms, other_ms in [(call_ms, 2 * call_ms), (2 * call_ms, call_ms)]:
        ratio, low, high = paired_speedup([kernel_ms] * 8, [other_ms] * 8)
        assert high / ratio == pytest.approx(ratio / low)
        assert high / ratio == pytest.approx((1 + SYSTEMATIC) * (1 + off))


def test_an_interval_covers_errors_that_last_a_whole_session() -> None:
    """All ratios of a session are off by the same, in proportion to how busy the machine is."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(2000):
        lasting = np.exp(0.18 * rng.standard_normal())
        ratios = lasting * np.exp(0.7 * rng.standard_normal(11))
        _, low, high = interval(ratios.tolist())
        held += low <= 1 <= high
    assert held >= 0.95 * 2000


def test_the_minimum_is_measured_until_it_stays() -> None:
    busy = iter([9.0, 8.0, 9.5, 3.0, 3.0, 3.0, 0.1])
    quiet = itertools.repeat(1.0)
    assert fastest([lambda: next(busy), lambda: next(quiet)]) == [3.0, 1.0]
    restless = itertools.count(1000.0, -20.0)
    assert fastest([lambda: next(restless)]) == [1000.0 - 20.0 * (MOST_TURNS - 1)]


def test_a_slow_baseline_counts_up_to_a_credible_time() -> None:
    assert credible_ms([1.0, 1.2, 0.9], 0.01) == pytest.approx(1.33)
