"""The field's measures of a set of generated kernels: fast_p, pass@k, mean speedups.

Each problem has one or more samples; the speedup of an incorrect sample is 0. Every measure is over problems
and has a 95 % interval: shares have Wilson's, which is no point even if all problems agree, and speedups a
bootstrap over problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from evaluators.records.evaluation import Evaluation, Status

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
"""The values of p in fast_p."""
LEVEL = 0.95
RESAMPLES = 2000
FEWEST = 3
"""Number of problems from which the interval of a speedup is estimated."""
NORMAL_QUANTILE = 1.959964
"""Of the normal distribution, for an interval of this level."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The samples of one problem: each sample's speedup, 0 if incorrect, and whether it compiled; the share
    of the roofline and the SOL score of the fastest, None if unknown. Raises ValueError for no samples and
    for lists of different lengths."""

    problem: str
    speedups: Sequence[float]
    compiled: Sequence[bool]
    weight: float = 1.0
    share: float | None = None
    sol_score: float | None = None

    def __post_init__(self) -> None:
        if not self.speedups or len(self.speedups) != len(self.compiled):
            raise ValueError(
                f"{self.problem} has {len(self.speedups)} speedups for {len(self.compiled)} samples"
            )

    @classmethod
    def of(cls, problem: str, found: Sequence[Evaluation], weight: float = 1.0) -> Self:
        """From the samples' evaluations."""
        fastest = max(found, key=lambda each: each.speedup)
        wrong = fastest.status.is_of_the_kernel and fastest.timing is None
        return cls(
            problem=problem,
            speedups=[each.speedup for each in found],
            compiled=[each.status is not Status.COMPILE_ERROR for each in found],
            weight=weight,
            share=0.0 if wrong else fastest.roofline_share,
            sol_score=0.0 if wrong else fastest.sol_score,
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measure and its 95 % interval; nan if there is nothing to measure. The interval's ends are nan if
    there are too few values to estimate one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return "-" if math.isnan(self.value) else f"{self.value:.3g} {self.interval or '(too few)'}"

    @property
    def interval(self) -> str:
        """The interval in brackets; "" if there is none."""
        known = math.isfinite(self.low) and math.isfinite(self.high)
        return f"[{self.low:.3g}, {self.high:.3g}]" if known else ""

    def to_json(self) -> dict[str, float | None]:
        """The fields, with None for numbers that JSON cannot have."""
        fields = {"value": self.value, "low": self.low, "high": self.high}
        return {name: each if math.isfinite(each) else None for name, each in fields.items()}

    def exp(self) -> Estimate:
        """The estimate of a quantity from the estimate of its logarithm."""
        return Estimate(value=math.exp(self.value), low=math.exp(self.low), high=math.exp(self.high))


def fast_p(problems: Sequence[Scored], p: float) -> Estimate:
    """The share of samples that are correct and have a speedup above `p`. With one sample per problem and
    equal weights, this is KernelBench's fast_p."""
    return _mean_share(problems, lambda each: _share(speedup > p for speedup in each.speedups))


def compiled(problems: Sequence[Scored]) -> Estimate:
    """The share of samples that compiled."""
    return _mean_share(problems, lambda each: _share(each.compiled))


def correct(problems: Sequence[Scored]) -> Estimate:
    """The share of samples that are correct."""
    return _mean_share(problems, lambda each: _share(speedup > 0 for speedup in each.speedups))


def pass_at_k(problems: Sequence[Scored], k: int) -> Estimate:
    """The probability that at least one of `k` samples is correct, by the unbiased estimator of Chen et al.
    2021 (HumanEval), over the problems with at least `k` samples."""

    def estimate(each: Scored) -> float:
        n, right = len(each.speedups), sum(speedup > 0 for speedup in each.speedups)
        return 1 - math.comb(n - right, k) / math.comb(n, k)

    return _mean_share([each for each in problems if len(each.speedups) >= k], estimate)


def geometric_mean(problems: Sequence[Scored]) -> Estimate:
    """The geometric mean of the best sample's speedup, over the problems with a correct sample."""
    return _mean(_solved(problems), lambda each: math.log(max(each.speedups))).exp()


def roofline(problems: Sequence[Scored]) -> Estimate:
    """The mean share of the roofline, 0 for an incorrect kernel: the least time that the machine allows,
    divided by the kernel's (Atrex-Bench's score). Over the problems whose roofline is known."""
    known = [each for each in problems if each.share is not None]
    return _mean(known, lambda each: each.share or 0.0)


def sol_score(problems: Sequence[Scored]) -> Estimate:
    """The mean of SOL-ExecBench's score, 0 for an incorrect kernel (see `Evaluation.sol_score`). Over the
    problems whose roofline is known."""
    known = [each for each in problems if each.sol_score is not None]
    return _mean(known, lambda each: each.sol_score or 0.0)


def median(problems: Sequence[Scored]) -> Estimate:
    """The unweighted median of the best sample's speedup, over the problems with a correct sample."""
    import numpy

    best = [max(each.speedups) for each in _solved(problems)]
    return _bootstrapped(best, [1.0] * len(best), lambda values, _: numpy.median(values, axis=-1))


def _solved(problems: Sequence[Scored]) -> list[Scored]:
    return [each for each in problems if max(each.speedups) > 0]


def measures(problems: Sequence[Scored], *, ks: Sequence[int] = (1,)) -> Mapping[str, Estimate]:
    """All measures by name; those of the roofline only if it is known for some problem."""
    known = any(each.share for each in problems)
    return {
        "compiled": compiled(problems),
        "correct": correct(problems),
        "geometric mean": geometric_mean(problems),
        "median": median(problems),
        **({"roofline": roofline(problems), "SOL score": sol_score(problems)} if known else {}),
        **{f"fast_{p:g}": fast_p(problems, p) for p in THRESHOLDS},
        **{f"pass@{k}": pass_at_k(problems, k) for k in ks},
    }


def _share(values: object) -> float:
    given = [bool(each) for each in values]  # type: ignore[attr-defined]
    return sum(given) / len(given)


def _mean_share(problems: Sequence[Scored], of: Callable[[Scored], float]) -> Estimate:
    """The weighted mean of shares, with Wilson's interval. Samples of one problem are not independent, so the
    problems count, by Kish's effective number if their weights differ."""
    weights = [each.weight for each in problems]
    total = sum(weights)
    if not problems:
        return Estimate(value=math.nan, low=math.nan, high=math.nan)
    value = sum(weight * of(each) for weight, each in zip(weights, problems, strict=True)) / total
    share = NORMAL_QUANTILE**2 * sum(each**2 for each in weights) / total**2
    middle = (value + share / 2) / (1 + share)
    half = math.sqrt(share * value * (1 - value) + share**2 / 4) / (1 + share)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Estimate(value=value, low=min(value, low), high=max(value, high))


def _mean(problems: Sequence[Scored], of: Callable[[Scored], float]) -> Estimate:
    import numpy

    return _bootstrapped(
        [of(each) for each in problems],
        [each.weight for each in problems],
        lambda values, weights: (
            (values * weights).sum(-1) / weights.sum(-1) if numpy.size(values) else math.nan
        ),
    )


def _bootstrapped(
    values: Sequence[float], weights: Sequence[float], statistic: Callable[..., object]
) -> Estimate:
    """A percentile bootstrap over problems, resampled together with their weights."""
    import numpy
    from scipy import stats

    if not values:
        return Estimate(value=math.nan, low=math.nan, high=math.nan)
    data = numpy.asarray(values, dtype=float), numpy.asarray(weights, dtype=float)
    value = float(statistic(*data))  # type: ignore[arg-type]
    if len(values) < FEWEST:
        return Estimate(value=value, low=math.nan, high=math.nan)
    if len({*values}) == 1:
        return Estimate(value=value, low=value, high=value)
    found = stats.bootstrap(
        data,
        lambda some, of, axis=-1: statistic(some, of),
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=LEVEL,
        n_resamples=RESAMPLES,
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return Estimate(value=value, low=float(found.low), high=float(found.high))
