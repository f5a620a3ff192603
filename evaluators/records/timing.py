"""The statistics of a measurement: block sizes, times from the judge process's clock, intervals. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evaluators.base.option import option
from evaluators.records.evaluation import Timing

MIN_PAIRS = 6
"""Fewer pairs have no 95 % interval for their median: the range of n samples covers 1 - 2^(1-n)."""

CONFIDENCE = 0.965
"""Of one interval: with a chance to stop at each of `STOPPING_COUNTS`, the one that is reported still covers
95 % (simulated for normal, exponential, lognormal, Laplace and uniform ratios; at 0.95 each it covers 93
%)."""

STEADY = 1.5
"""What the upper end of the interval of eager's time is of the lower one, at most, where a machine does
nothing else. Of 300 cases on H200s it was 1.9 to 6.1 in three, and below 1.02 in nearly all others."""

SYSTEMATIC = 0.01
"""What repeating blocks cannot tell: where the two sides' memory happens to lie. A reference against itself
differed from 1 by up to 1.2 % from one start of the processes to the next (layernorm, H200)."""

SYSTEMATIC_SHARE = 0.25
"""Of the spread of paired ratios, as much again, for what lasts a whole session. In four sessions beside four
to ten busy processes on two cores (layernorm, matmul), each with a baseline process of its own, the logarithm
of the reference's ratio to itself was off from 0 by 0.08 to 0.23 (root mean square 0.18, each with a standard
error of 0.04 to 0.09), where that of single pairs had a standard deviation of 0.5 to 0.8. The cause is not
known."""

SYSTEMATIC_MS = 2e-4
"""Of a call, besides: launches of two processes differ by as much for as long as these last. 418 times one of
PyTorch's operators was timed against itself on H200s whose host's other GPUs were busy, most with 2 to 6 us a
call. 82 % of the intervals held 1 without this, 96 % do with it, which was chosen by them."""

STOPPING_COUNTS = (6, 8, 11, 15, 20, 27, 36, 48)
"""Pair counts at which sampling may stop. Few of them keep the interval honest under optional stopping."""

MORE_TIME, MORE_PAIRS = 3, 27
"""So many times the plan's time may sampling take where a kernel seems uneven, or so many pairs."""

RESOLUTION_MS = 5e-4
"""Shorter times are below what the clock can tell."""

FEW_PAIRS, FEW_PRECISION = 11, 0.15
"""When the time is over, fewer pairs are enough only where the interval is narrower: it is the range of all
pairs then, and with one more outlier it says nothing."""

SABOTAGED = "sabotaged baseline"
"""The rule of which `sabotaged` speaks."""

BATCH_FACTOR, SABOTAGE_FACTOR = 1.5, 1.1
"""How much longer a single call may take than one of many, beyond what the reference's own does; how much
slower the baseline may run beside a kernel than before the kernel was loaded."""

BLOCK_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

MOST_CPU_CALLS = 32
"""Of a block on a CPU, where each costs about 2 ms besides: with 256 a search of a softmax of 4,096 elements
took twelve seconds a kernel for its eleven pairs."""

QUIET_TURNS, MOST_TURNS, NOT_LESS = 2, 24, 0.99
"""When the least of several measurements is known: after so many turns, at most, without a time below that
part of the least before."""

TINY_MS = 0.25
"""What a call takes that no block of one can tell from another's: starting a block costs as much."""

PAIRS_AGAINST = 11
"""Fewer pairs of blocks, with the copying of outputs and without, are never held against a kernel."""

DELIVERY_MATTERS = 0.1
"""The part of a block from which it is held against a kernel that it does not copy its outputs."""

SLACK_MS = {"cpu": 0.1, "cuda": 0.01}
"""What these two comparisons may be off by whatever the times: the clock's noise on single calls."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to measure."""

    block_ms: float = field(metadata={"help": "of a block of calls"})
    precision: float = field(
        metadata={"help": "relative half-width of the speedup's interval at which to stop"}
    )
    max_s: float = field(metadata={"help": "seconds after which to stop in any case"})
    least_calls: int = option(1, "at least: calls of a block")
    most_calls: int = option(BLOCK_SIZES[-1], "at most, where `max_calls` allows it")

    def calls(self, call_ms: float, capacity: int) -> int:
        """Calls of a block for a module that takes `call_ms`, at most `capacity`; one where a call alone
        outlasts ten blocks."""
        if call_ms > 10 * self.block_ms:
            return 1
        capacity = min(capacity, self.most_calls)
        wanted = max(self.block_ms / max(call_ms, 1e-6), self.least_calls)
        return next((n for n in block_sizes(capacity) if n >= wanted), capacity)

    def capacity(self, call_ms: float, floor_ms: float, most: int) -> int:
        """Calls that shared buffers should have room for where the baseline takes `call_ms`, at most `most`:
        four blocks of the baseline's, or one of the fastest kernel's that can be, so that whatever is faster
        still fills a block."""
        least_ms = max(min(call_ms / 4, floor_ms), 1e-6)
        return max(1, min(most, math.ceil(self.block_ms / least_ms)))

    def on(self, device: str) -> Plan:
        """The plan for blocks there: on a CPU their figure is the median of their calls, some of which other
        processes disturb, and stopping and starting the runner takes a call longer than a short kernel."""
        if device != "cpu":
            return self
        most_calls = min(self.most_calls, MOST_CPU_CALLS)
        return replace(self, block_ms=self.block_ms / 4, least_calls=3, most_calls=most_calls)

    def lengthened(self, factor: float) -> Plan:
        """With so many times the time."""
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
        """Whether to sample on, after so many pairs, where a kernel seems uneven (see `evenness.py`)."""
        return pairs < (STOPPING_COUNTS[-1] if elapsed_s < MORE_TIME * self.max_s else MORE_PAIRS)


def block_sizes(capacity: int) -> list[int]:
    """The numbers of calls that a block may have, so that what such a block costs besides can be known."""
    return [n for n in BLOCK_SIZES if n < capacity] + [capacity]


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What a block costs besides its calls, in ms; `delivery_ms` of it for copying the outputs."""

    total_ms: float
    delivery_ms: float


def fastest(kinds: Sequence[Callable[[], float]]) -> list[float]:
    """The least ms of each, measured in turns until some turns have brought nothing less: a machine that is
    busy for a while makes all of a few turns slow."""
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
    """The overheads for these numbers of calls, out of those measured for some: they grow linearly (a line
    through medians of slopes, which takes out the noise of single measurements, Theil 1950, Sen 1968)."""

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
    """A block of calls on the judge process's clock, from the moment its inputs are shown to the last
    output."""

    calls: int
    wall_ms: float
    walls_ms: tuple[float, ...] = ()
    """Of each call, where they are made one by one; then `wall_ms` is their median times their number."""
    waited_ms: tuple[float, ...] = ()
    """How long, meanwhile, the runner's threads and the judge process waited for a core, all added up; empty
    where that is not known."""

    def call_ms(self, overhead_ms: float) -> float:
        """One call's time, where a block of so many calls costs `overhead_ms` besides."""
        return max((self.wall_ms - overhead_ms) / self.calls, RESOLUTION_MS)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Median and its distribution-free interval between order statistics (David & Nagaraja, Order
    Statistics, 7.1). Exact for any continuous distribution, where a bootstrap of few samples is too
    narrow. Raises ValueError for fewer than MIN_PAIRS values.
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
    """Whether eager PyTorch took about the same time throughout: the interval of its median is within STEADY.
    Where it is not, something else ran on the machine, and none of the times can be relied on."""
    if len(timing.eager_samples_ms) < MIN_PAIRS:
        return True
    _, low, high = median_interval(timing.eager_samples_ms)
    return high <= STEADY * low


def interval(ratios: Sequence[float], call_ms: float = math.inf) -> tuple[float, float, float]:
    """Speedup and its 95 % interval: of the median of paired ratios, widened by SYSTEMATIC, or by more where
    they spread (1.48 times the median absolute deviation estimates a standard deviation), and by
    SYSTEMATIC_MS in the `call_ms` that a call of the faster side takes."""
    median, low, high = median_interval(ratios)
    spread = 1.48 * statistics.median(abs(each - median) for each in ratios) / median
    widening = (1 + max(SYSTEMATIC, SYSTEMATIC_SHARE * spread)) * (1 + SYSTEMATIC_MS / call_ms)
    return median, low / widening, high * widening


def paired_speedup(kernel_ms: Sequence[float], other_ms: Sequence[float]) -> tuple[float, float, float]:
    """How many times as fast one kernel is as another (or eager), with its 95 % interval: of samples of both
    in one session, aligned by turn (`Timing.kernel_samples_ms`, `eager_samples_ms`). Raises ValueError where
    they are not equally many, or fewer than MIN_PAIRS."""
    ratios = [other / kernel for kernel, other in zip(kernel_ms, other_ms, strict=True)]
    return interval(ratios, min(statistics.median(kernel_ms), statistics.median(other_ms)))


def timing_of(
    kernel_ms: Sequence[float], eager_ms: Sequence[float], compiled_ms: Sequence[float] = ()
) -> Timing:
    """What samples of one session, aligned by turn, come to."""
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
    """Whether the calls of a block may not have been computed one by one: alone, a call takes far longer than
    one of many (all times per call; of the calls alone the fastest counts, since noise only adds), by more
    than the baseline's did, `waking_ms`; or so little that this could not be told."""
    return block_ms < TINY_MS or min(singles_ms) > BATCH_FACTOR * block_ms + waking_ms + slack_ms


def batched(chain_ms: float, block_ms: float, link_ms: float, slack_ms: float) -> str | None:
    """Why the calls of a block cannot have been computed one by one: in a chain, where each needs the answer
    before, a call takes far longer (all times per call; a link of the chain costs `link_ms`)."""
    alone_ms = chain_ms - link_ms
    if alone_ms <= BATCH_FACTOR * block_ms + slack_ms:
        return None
    return (
        f"a call that needs the answer before takes {alone_ms:.4g} ms, one of many {block_ms:.4g} ms: they "
        "were not computed singly"
    )


def delivers(longer_ms: Sequence[float], delivery_ms: float) -> bool | None:
    """Whether outputs are copied out as every kernel's are: by how much longer blocks with that step take
    than ones without, in pairs, where the copies take `delivery_ms`. None where the pairs cannot tell yet.

    It is told by the interval of the median, but for the first few pairs: they can only speak for the kernel,
    and only where they differ by much less than they exceed what is asked."""
    least_ms = delivery_ms / 2
    if len(longer_ms) < MIN_PAIRS:
        spread_ms = max(longer_ms) - min(longer_ms)
        return True if len(longer_ms) > 1 and min(longer_ms) - spread_ms > least_ms else None
    _, low, high = median_interval(longer_ms)
    if low > least_ms:
        return True
    return False if high < least_ms and len(longer_ms) >= PAIRS_AGAINST else None


def sabotaged(before_ms: Sequence[float], beside_ms: Sequence[float], slack_ms: float) -> str | None:
    """Why the baseline cannot have had the device for itself: three quarters of its blocks beside the kernel
    were slower than any before. A machine that is busy for a while does not slow all of them down."""
    before, beside = max(before_ms), sorted(beside_ms)[len(beside_ms) // 4]
    if beside <= credible_ms(before_ms, slack_ms):
        return None
    return f"beside the kernel the baseline takes {beside:.4g} ms instead of {before:.4g} ms"


def credible_ms(before_ms: Sequence[float], slack_ms: float) -> float:
    """What a block of the baseline may take a call beside a kernel, by what blocks took before it was loaded.
    More is put down to the kernel, and does not count in its favour."""
    return SABOTAGE_FACTOR * max(before_ms) + slack_ms
