"""The statistics of a measurement: block sizes, times on the judge process's clock, intervals. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from evaluators.base.option import option
from evaluators.records.evaluation import Timing

MIN_PAIRS = 6
"""Number of pairs from which the median has a 95 % interval: the range of n samples covers 1 - 2^(1-n)."""

CONFIDENCE = 0.965
"""Nominal coverage of each interval. Sampling may stop at any of `STOPPING_COUNTS`, and at this level the
reported interval still covers 95 % (simulated for normal, exponential, lognormal, Laplace and uniform ratios;
at 0.95 it covers 93 %)."""

STEADY = 1.5
"""Largest ratio of the ends of the interval of eager's time on a machine that is otherwise idle. Of 300 cases
on H200s, three had 1.9 to 6.1 and nearly all others less than 1.02."""

SYSTEMATIC = 0.01
"""Relative error that repeated blocks cannot show: it comes from where the two sides' memory lies. The
speedup of a reference over itself differed from 1 by up to 1.2 % between starts of the processes (layernorm,
H200)."""

SYSTEMATIC_SHARE = 0.25
"""Share of the paired ratios' spread that is added to the interval for errors that last a whole session.
Measured next to four to ten busy processes on two cores (layernorm, matmul), in four sessions with one
baseline process each: the logarithm of the reference's ratio to itself was off from 0 by 0.08 to 0.23 (root
mean square 0.18, standard errors 0.04 to 0.09), and that of single pairs had a standard deviation of 0.5 to
0.8. The cause is unknown."""

SYSTEMATIC_MS = 2e-4
"""Absolute error of a call's time, in ms: launches of two processes differ by this much for as long as the
processes live. It was chosen from 418 timings of PyTorch operators against themselves, most of 2 to 6 us per
call, on H200s whose host's other GPUs were busy. Without it 82 % of the intervals contained 1, with it 96
%."""

STOPPING_COUNTS = (6, 8, 11, 15, 20, 27, 36, 48)
"""Pair counts at which sampling may stop. The fewer there are, the less optional stopping narrows the
interval's coverage."""

MORE_TIME, MORE_PAIRS = 3, 27
"""If a kernel seems uneven, sampling may take this many times the plan's time, or this many pairs."""

RESOLUTION_MS = 5e-4
"""The clock's resolution."""

FEW_PAIRS, FEW_PRECISION = 11, 0.15
"""When the time is over, this many pairs are enough, or fewer if the interval's relative half-width is below
this. The interval of so few pairs is their range, which a single outlier makes useless."""

SABOTAGED = "sabotaged baseline"
"""The rule that `sabotaged` checks."""

BATCH_FACTOR, SABOTAGE_FACTOR = 1.5, 1.1
"""How many times as long a single call may take as one of many, beyond the reference's own difference; how
many times as long the baseline may take next to a kernel as before the kernel was loaded."""

BLOCK_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

MOST_CPU_CALLS = 32
"""Most calls of a block on a CPU, where each call has an overhead of about 2 ms. With 256, the eleven pairs
of a softmax of 4,096 elements took twelve seconds per kernel."""

QUIET_TURNS, MOST_TURNS, NOT_LESS = 2, 24, 0.99
"""When a minimum is known: after QUIET_TURNS turns without a time below NOT_LESS times the previous minimum,
or after MOST_TURNS turns."""

TINY_MS = 0.25
"""Time per call below which blocks of one call cannot be told apart: starting a block takes as long."""

PAIRS_AGAINST = 11
"""Fewest pairs of blocks, with and without copying of outputs, on which a kernel is rejected."""

DELIVERY_MATTERS = 0.1
"""Share of a block that copying the outputs must take for its absence to get a kernel rejected."""

SLACK_MS = {"cpu": 0.1, "cuda": 0.01}
"""Absolute tolerance of the comparisons with BATCH_FACTOR and SABOTAGE_FACTOR, by device: the clock's noise
on single calls."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to measure.

    Attributes:
        block_ms: Length of a block of calls, in ms.
        precision: Relative half-width of the speedup's interval at which to stop.
        max_s: Seconds after which to stop in any case.
        least_calls: Fewest calls of a block.
        most_calls: Most calls of a block.
    """

    block_ms: float = field(metadata={"help": "length of a block of calls, in ms"})
    precision: float = field(
        metadata={"help": "relative half-width of the speedup's interval at which to stop"}
    )
    max_s: float = field(metadata={"help": "seconds after which to stop in any case"})
    least_calls: int = option(1, "fewest calls of a block")
    most_calls: int = option(BLOCK_SIZES[-1], "most calls of a block, also limited by `max_calls`")

    def calls(self, call_ms: float, capacity: int) -> int:
        """Calls of a block for a module that takes `call_ms`, at most `capacity`; 1 if a call takes longer
        than ten blocks."""
        if call_ms > 10 * self.block_ms:
            return 1
        capacity = min(capacity, self.most_calls)
        wanted = max(self.block_ms / max(call_ms, 1e-6), self.least_calls)
        return next((n for n in block_sizes(capacity) if n >= wanted), capacity)

    def capacity(self, call_ms: float, floor_ms: float, most: int) -> int:
        """Calls for which shared buffers need room if the baseline takes `call_ms`, at most `most`: four of
        the baseline's blocks, or one block of the fastest possible kernel, so that every kernel can fill a
        block."""
        least_ms = max(min(call_ms / 4, floor_ms), 1e-6)
        return max(1, min(most, math.ceil(self.block_ms / least_ms)))

    def on(self, device: str) -> Plan:
        """The plan for a device. On a CPU a block's time is the median of its calls, because other processes
        disturb some of them, and stopping and resuming the runner for each call takes longer than a short
        kernel."""
        if device != "cpu":
            return self
        most_calls = min(self.most_calls, MOST_CPU_CALLS)
        return replace(self, block_ms=self.block_ms / 4, least_calls=3, most_calls=most_calls)

    def lengthened(self, factor: float) -> Plan:
        """The plan with `factor` times the time."""
        return replace(self, max_s=factor * self.max_s)

    def enough(self, ratios: Sequence[float], elapsed_s: float) -> bool:
        """Whether to stop sampling after these paired ratios."""
        if len(ratios) < MIN_PAIRS:
            return False
        late = elapsed_s > self.max_s
        if len(ratios) >= (FEW_PAIRS if late else STOPPING_COUNTS[-1]):
            return True
        median, low, high = interval(ratios)
        precision = max(self.precision, FEW_PRECISION) if late else self.precision
        return len(ratios) in STOPPING_COUNTS and (high - low) / 2 < precision * median

    def may_go_on(self, pairs: int, elapsed_s: float) -> bool:
        """Whether a kernel that seems uneven may get another pair after these (see `evenness.py`)."""
        return pairs < (STOPPING_COUNTS[-1] if elapsed_s < MORE_TIME * self.max_s else MORE_PAIRS)


class Effort(StrEnum):
    """How far kernels are checked, and how long they are timed. A QUICK measurement only finds out which of
    many may be the fastest: it leaves all checks but those on the problem's own inputs to a later evaluation.
    A FULL evaluation is a USUAL one that tries all distributions of inputs before it calls a kernel
    incorrect, so that a repair learns of all of them."""

    QUICK = "quick"
    USUAL = "usual"
    FULL = "full"
    THOROUGH = "thorough"


def block_sizes(capacity: int) -> list[int]:
    """The possible numbers of calls of a block. There are few, so that the overhead of each can be
    measured."""
    return [n for n in BLOCK_SIZES if n < capacity] + [capacity]


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """A block's overhead, in ms; `delivery_ms` of it is for copying the outputs."""

    total_ms: float
    delivery_ms: float


def fastest(kinds: Sequence[Callable[[], float]]) -> list[float]:
    """The minimum of each measurement in ms. They are measured in turns until QUIET_TURNS turns bring no
    lower value, because a machine that is busy for a while slows down several turns in a row."""
    least = [math.inf] * len(kinds)
    quiet = 0
    for _ in range(MOST_TURNS):
        seen = [kind() for kind in kinds]
        lower = any(now < NOT_LESS * before for now, before in zip(seen, least, strict=True))
        least = [min(pair) for pair in zip(seen, least, strict=True)]
        quiet = 0 if lower else quiet + 1
        if quiet == QUIET_TURNS:
            break
    return least


def smoothed(overheads: Mapping[int, Overhead], sizes: Iterable[int]) -> dict[int, Overhead]:
    """The overheads of blocks of these sizes, from those measured for some sizes. They grow linearly; the
    line's slope is the median of all pairs' slopes, which removes the noise of single measurements (Theil
    1950, Sen 1968)."""

    def line(values: dict[int, float]) -> Callable[[int], float]:
        pairs = itertools.combinations(values, 2)
        slope = statistics.median([(values[b] - values[a]) / (b - a) for a, b in pairs] or [0.0])
        start = statistics.median(value - slope * n for n, value in values.items())
        return lambda n: max(start + slope * n, 0.0)

    total = line({n: each.total_ms for n, each in overheads.items()})
    delivery = line({n: each.delivery_ms for n, each in overheads.items()})
    return {n: Overhead(total_ms=total(n), delivery_ms=delivery(n)) for n in sizes}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of calls on the judge process's clock, from the moment the inputs are visible to the last
    output."""

    calls: int
    wall_ms: float
    walls_ms: tuple[float, ...] = ()
    """Time of each call, if they are made one by one. `wall_ms` is then their median times their number."""
    waited_ms: tuple[float, ...] = ()
    """Total time for which the runner's threads and the judge process waited for a core during each call;
    empty if unknown."""

    def call_ms(self, overhead_ms: float) -> float:
        """One call's time, given the block's overhead."""
        return max((self.wall_ms - overhead_ms) / self.calls, RESOLUTION_MS)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """The median and its distribution-free interval between order statistics (David & Nagaraja, Order
    Statistics, 7.1), as (median, low, high). It is exact for any continuous distribution; a bootstrap of few
    samples is too narrow. Raises ValueError for fewer than MIN_PAIRS values.
    """
    n = len(values)
    if n < MIN_PAIRS:
        raise ValueError(f"{n} samples; an interval needs at least {MIN_PAIRS}")
    ordered = sorted(values)
    tail, rank = 0.0, 0
    while (tail := tail + math.comb(n, rank) / 2**n) <= (1 - confidence) / 2:
        rank += 1
    # `rank` samples may be left out at each end
    return statistics.median(ordered), ordered[rank - 1], ordered[n - rank]


def is_steady(timing: Timing) -> bool:
    """Whether eager PyTorch's time stayed about the same: the ends of its interval are within STEADY. If not,
    something else ran on the machine, and all times are unreliable."""
    if len(timing.eager_samples_ms) < MIN_PAIRS:
        return True
    _, low, high = median_interval(timing.eager_samples_ms)
    return high <= STEADY * low


def interval(ratios: Sequence[float], call_ms: float = math.inf) -> tuple[float, float, float]:
    """The speedup and its 95 % interval, as (speedup, low, high). The interval of the paired ratios' median
    is widened by SYSTEMATIC, or by SYSTEMATIC_SHARE of their standard deviation if that is more (estimated as
    1.48 times the median absolute deviation), and by SYSTEMATIC_MS relative to `call_ms`, the faster side's
    time per call."""
    median, low, high = median_interval(ratios)
    spread = 1.48 * statistics.median(abs(each - median) for each in ratios) / median
    widening = (1 + max(SYSTEMATIC, SYSTEMATIC_SHARE * spread)) * (1 + SYSTEMATIC_MS / call_ms)
    return median, low / widening, high * widening


def paired_speedup(kernel_ms: Sequence[float], other_ms: Sequence[float]) -> tuple[float, float, float]:
    """A kernel's speedup over another kernel (or eager) and its 95 % interval, from samples of both in one
    session, aligned by turn (`Timing.kernel_samples_ms`, `eager_samples_ms`). Raises ValueError if their
    numbers differ or are below MIN_PAIRS."""
    ratios = [other / kernel for kernel, other in zip(kernel_ms, other_ms, strict=True)]
    return interval(ratios, min(statistics.median(kernel_ms), statistics.median(other_ms)))


def timing_of(
    kernel_ms: Sequence[float], eager_ms: Sequence[float], compiled_ms: Sequence[float] = ()
) -> Timing:
    """The timing from samples of one session, aligned by turn."""
    speedup, low, high = paired_speedup(kernel_ms, eager_ms)
    return Timing(
        kernel_ms=statistics.median(kernel_ms),
        eager_ms=statistics.median(eager_ms),
        compile_ms=statistics.median(compiled_ms) if compiled_ms else None,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        kernel_samples_ms=tuple(kernel_ms),
        eager_samples_ms=tuple(eager_ms),
    )


def suspicious(
    singles_ms: Sequence[float],
    block_ms: float,
    waking_ms: float,
    slack_ms: float,
) -> bool:
    """Whether the calls of a block may have been batched: the fastest single call takes more than
    BATCH_FACTOR times as long as one of many, beyond the baseline's own difference `waking_ms`; or calls are
    too short to tell. All times are per call. The fastest single call counts because noise only adds time."""
    return block_ms < TINY_MS or min(singles_ms) > BATCH_FACTOR * block_ms + waking_ms + slack_ms


def batched(chain_ms: float, block_ms: float, link_ms: float, slack_ms: float) -> str | None:
    """Why the calls of a block must have been batched: in a chain, where each call needs the previous answer,
    a call takes far longer. All times are per call; a link of the chain takes `link_ms`. None if they were
    not batched."""
    alone_ms = chain_ms - link_ms
    if alone_ms <= BATCH_FACTOR * block_ms + slack_ms:
        return None
    return (
        f"a call that needs the previous answer takes {alone_ms:.4g} ms, one of many independent calls "
        f"{block_ms:.4g} ms: the independent calls were not computed one by one"
    )


def delivers(longer_ms: Sequence[float], delivery_ms: float) -> bool | None:
    """Whether the kernel's outputs are really copied: `longer_ms` is, for each pair of blocks, how much
    longer the one with the copying step takes; the copies alone take `delivery_ms`. None if more pairs are
    needed.

    The interval of the median decides. Before it exists, the first pairs can only clear the kernel, and only
    if they exceed the threshold by more than they differ."""
    least_ms = delivery_ms / 2
    if len(longer_ms) < MIN_PAIRS:
        spread_ms = max(longer_ms) - min(longer_ms)
        return True if len(longer_ms) > 1 and min(longer_ms) - spread_ms > least_ms else None
    _, low, high = median_interval(longer_ms)
    if low > least_ms:
        return True
    return False if high < least_ms and len(longer_ms) >= PAIRS_AGAINST else None


def sabotaged(before_ms: Sequence[float], beside_ms: Sequence[float], slack_ms: float) -> str | None:
    """Why the kernel must have slowed the baseline down: three quarters of the baseline's blocks next to the
    kernel were slower than any before it was loaded. A machine that is busy for a while slows down fewer.
    None if it did not."""
    before, together = max(before_ms), sorted(beside_ms)[len(beside_ms) // 4]
    if together <= credible_ms(before_ms, slack_ms):
        return None
    return f"next to the kernel the baseline takes {together:.4g} ms instead of {before:.4g} ms"


def credible_ms(before_ms: Sequence[float], slack_ms: float) -> float:
    """The longest believable time per call of the baseline next to a kernel, from its times before the kernel
    was loaded. Anything above is attributed to the kernel and does not count in its favour."""
    return SABOTAGE_FACTOR * max(before_ms) + slack_ms
