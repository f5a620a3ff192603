"""The differences between the arms of a comparison: paired by problem and seed, with bootstrap intervals. A
difference counts as real only if a permutation test agrees, corrected for the number of contrasts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evaluators.records.scores import Estimate
from search.compare.curves import Searched

LEVEL = 0.95
RESAMPLES = 9999
FEWEST = 3
"""Pairs below which arms are not compared."""


def fewest_significant(contrasts: int) -> int:
    """The number of pairs below which no difference passes the permutation test, corrected for this many
    contrasts: its smallest p-value for n pairs is 2 ^ (1 - n)."""
    return 1 + math.ceil(math.log2(contrasts / (1 - LEVEL)))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two arms, which statisticians call a contrast.

    Attributes:
        first: the name of one arm.
        second: the name of the other arm.
        pairs: the number of problems and seeds that both have searched.
        ratio: the speedup of the first one's winners divided by that of the second one's, as a geometric mean
            over the pairs.
        beats: the share of pairs in which the first one's winner is faster, ties counted half.
        p: the p-value of the paired permutation test.
        p_corrected: the same after Holm's correction for the number of contrasts.
        contrasts: the number of contrasts that p is corrected for; 1 for the primary one.
        is_primary: whether the comparison named it beforehand as the one to test.
    """

    first: str
    second: str
    pairs: int
    ratio: Estimate
    beats: Estimate
    p: float
    p_corrected: float
    contrasts: int = 1
    is_primary: bool = False

    @property
    def is_real(self) -> bool:
        """Whether it is significant: the interval excludes 1, and the corrected test agrees at its level."""
        return self.p_corrected < 1 - LEVEL and self._excludes_1

    @property
    def _excludes_1(self) -> bool:
        return not self.ratio.low <= 1 <= self.ratio.high

    @property
    def sentence(self) -> str:
        """The difference in words."""
        primary = " (primary contrast)" if self.is_primary else ""
        both = f"{self.first} and {self.second}{primary}"
        if self.pairs < FEWEST:
            few = "1 pair is" if self.pairs == 1 else f"{self.pairs} pairs are"
            return f"{both}: {few} too few to compare."
        ratio_in_pairs = f"{self.ratio} times as fast in {self.pairs} pairs"
        fewest = fewest_significant(self.contrasts)
        if self.pairs < fewest and self._excludes_1:
            return f"{both}: {ratio_in_pairs}; a significant difference needs at least {fewest}."
        if not self.is_real:
            return f"{both} do not differ significantly: {ratio_in_pairs} ({self._p_values})."
        faster, slower, ratio = self.first, self.second, self.ratio
        if ratio.value < 1:
            faster, slower = slower, faster
            ratio = Estimate(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)
        return (
            f"{faster} finds significantly faster kernels than {slower}{primary}: "
            f"{ratio} times as fast in {self.pairs} pairs ({self._p_values})."
        )

    @property
    def _p_values(self) -> str:
        if self.contrasts == 1:
            return f"p {self.p:.2g}"
        return f"p {self.p:.2g}; {self.p_corrected:.2g} corrected for {self.contrasts} contrasts"


def means(searches: Sequence[Searched]) -> Mapping[str, Estimate]:
    """The geometric mean of the final speedups, by arm."""
    found = {}
    for arm in dict.fromkeys(each.arm for each in searches):
        logs = [math.log(each.final) for each in searches if each.arm == arm]
        found[arm] = _mean(logs).exp()
    return found


def differences(searches: Sequence[Searched], primary: Sequence[str] = ()) -> list[Difference]:
    """The difference between each two arms, over the problems and seeds that both have searched. The p-value
    of the two `primary` arms stands as it is; those of all others are corrected together."""
    finals = {(each.arm, each.problem, each.seed): math.log(each.final) for each in searches}
    arms = list(dict.fromkeys(each.arm for each in searches))
    found = [_difference(first, second, finals) for first, second in itertools.combinations(arms, 2)]
    found = [replace(each, is_primary={each.first, each.second} == set(primary)) for each in found]
    named = [each for each in found if each.is_primary]
    return [*named, *_corrected([each for each in found if not each.is_primary])]


def _corrected(family: Sequence[Difference]) -> list[Difference]:
    """The same differences with their p-values by Holm's step-down method."""
    steps, least = {}, 0.0
    for step, each in enumerate(sorted(family, key=lambda each: each.p)):
        least = steps[each] = max(least, min(1.0, (len(family) - step) * each.p))
    return [replace(each, p_corrected=steps[each], contrasts=len(family)) for each in family]


def _difference(first: str, second: str, finals: Mapping[tuple[str, str, int], float]) -> Difference:
    pairs = [
        finals[first, problem, seed] - finals[second, problem, seed]
        for arm, problem, seed in finals
        if arm == first and (second, problem, seed) in finals
    ]
    wins = [0.5 if difference == 0 else float(difference > 0) for difference in pairs]
    p = _p_value(pairs)
    return Difference(
        first=first,
        second=second,
        pairs=len(pairs),
        ratio=_mean(pairs).exp(),
        beats=_mean(wins),
        p=p,
        p_corrected=p,
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
