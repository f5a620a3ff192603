"""The differences between the arms of a comparison: paired by problem and seed, with bootstrap intervals. A
difference counts as real only if a permutation test agrees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluators.records.scores import Estimate
from search.compare.curves import Searched

LEVEL = 0.95
RESAMPLES = 9999
FEWEST = 3
"""Pairs below which arms are not compared."""
FEWEST_SIGNIFICANT = 6
"""Pairs below which no difference passes the permutation test: its smallest p for n pairs is 2 ^ (1 - n)."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two arms. `ratio` is the speedup of the first one's winners divided by that of
    the second one's, as a geometric mean over the pairs; `beats` is the share of pairs in which the first
    one's winner is faster, ties counted half; `p` is the p-value of the paired permutation test."""

    first: str
    second: str
    pairs: int
    ratio: Estimate
    beats: Estimate
    p: float

    @property
    def is_real(self) -> bool:
        """Whether it is significant: the interval excludes 1, and the test agrees at the same level."""
        return self.p < 1 - LEVEL and not self.ratio.low <= 1 <= self.ratio.high

    @property
    def sentence(self) -> str:
        """The difference in words."""
        both = f"{self.first} and {self.second}"
        if self.pairs < FEWEST:
            return f"{both}: {self.pairs} pairs are too few to compare."
        ratio_in_pairs = f"{self.ratio} times as fast in {self.pairs} pairs"
        if self.pairs < FEWEST_SIGNIFICANT and not self.ratio.low <= 1 <= self.ratio.high:
            return f"{both}: {ratio_in_pairs}; a significant difference needs at least {FEWEST_SIGNIFICANT}."
        if not self.is_real:
            return f"{both} do not differ significantly: {ratio_in_pairs}."
        faster, slower, ratio = self.first, self.second, self.ratio
        if ratio.value < 1:
            faster, slower = slower, faster
            ratio = Estimate(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)
        return (
            f"{faster} finds significantly faster kernels than {slower}: "
            f"{ratio} times as fast in {self.pairs} pairs (p {self.p:.2g})."
        )


def means(searches: Sequence[Searched]) -> Mapping[str, Estimate]:
    """The geometric mean of the final speedups, by arm."""
    found = {}
    for arm in dict.fromkeys(each.arm for each in searches):
        logs = [math.log(each.final) for each in searches if each.arm == arm]
        found[arm] = _mean(logs).exp()
    return found


def differences(searches: Sequence[Searched]) -> list[Difference]:
    """The difference between each two arms, over the problems and seeds that both have searched."""
    finals = {(each.arm, each.problem, each.seed): math.log(each.final) for each in searches}
    arms = list(dict.fromkeys(each.arm for each in searches))
    return [_difference(first, second, finals) for first, second in itertools.combinations(arms, 2)]


def _difference(first: str, second: str, finals: Mapping[tuple[str, str, int], float]) -> Difference:
    pairs = [
        finals[first, problem, seed] - finals[second, problem, seed]
        for arm, problem, seed in finals
        if arm == first and (second, problem, seed) in finals
    ]
    wins = [0.5 if difference == 0 else float(difference > 0) for difference in pairs]
    return Difference(
        first=first,
        second=second,
        pairs=len(pairs),
        ratio=_mean(pairs).exp(),
        beats=_mean(wins),
        p=_p_value(pairs),
    )


def _mean(values: Sequence[float]) -> Estimate:
    """The mean with its bootstrap interval (bias-corrected and accelerated). The interval is a point if all
    values are equal, and infinite if there are too few values."""
    import numpy
    from scipy import stats

    if not values:
        return Estimate(value=math.nan, low=-math.inf, high=math.inf)
    mean = float(numpy.mean(values))
    if len(values) < FEWEST:
        return Estimate(value=mean, low=-math.inf, high=math.inf)
    if len(set(values)) == 1:
        return Estimate(value=mean, low=mean, high=mean)
    found = stats.bootstrap(
        (numpy.asarray(values),),
        numpy.mean,
        confidence_level=LEVEL,
        n_resamples=RESAMPLES,
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return Estimate(value=mean, low=float(found.low), high=float(found.high))


def _p_value(differences: Sequence[float]) -> float:
    """The probability of a mean at least this far from 0 if the arms were interchangeable in every pair."""
    import numpy
    from scipy import stats

    if len(differences) < FEWEST or not any(differences):
        return 1.0
    found = stats.permutation_test(
        (numpy.asarray(differences), numpy.zeros(len(differences))),
        lambda one, other, axis: numpy.mean(one - other, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=numpy.random.default_rng(0),
    )
    return float(found.pvalue)
