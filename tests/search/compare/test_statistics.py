"""Differences between arms: planted ones are found, and noise is not."""

from __future__ import annotations

import math
import random

import pytest

from search.compare.curves import Point, Searched, best_at
from search.compare.statistics import differences, means


def finals(arm: str, values: list[float], problem: str = "p") -> list[Searched]:
    return [
        Searched(problem=problem, arm=arm, seed=seed, reason="", final=value, points=(Point(),))
        for seed, value in enumerate(values)
    ]


def drawn(rng: random.Random, n: int, *, gain: float = 0.0) -> list[Searched]:
    """Two arms with the same levels by seed; the second is better by the logarithm `gain`."""
    places = [rng.gauss(0.7, 0.4) for _ in range(n)]
    one = [math.exp(place + rng.gauss(0, 0.1)) for place in places]
    other = [math.exp(place + gain + rng.gauss(0, 0.1)) for place in places]
    return finals("one", one) + finals("other", other)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [5, 10, 40])
def test_equal_arms_rarely_differ_significantly(seeds: int) -> None:
    rng = random.Random(seeds)
    real = sum(differences(drawn(rng, seeds))[0].is_real for _ in range(100))
    assert real <= 9, "binomially, more than 9 of 100 come once in 40 times at 5 %"


def test_a_planted_difference_is_found() -> None:
    (found,) = differences(drawn(random.Random(1), 20, gain=0.3))
    assert found.is_real
    assert found.ratio.low < math.exp(-0.3) < found.ratio.high
    assert found.beats.value < 0.1
    assert found.sentence.startswith("other finds significantly faster kernels than one: 1.")


def test_noise_is_not_significant() -> None:
    (found,) = differences(drawn(random.Random(2), 10))
    assert not found.is_real
    assert found.sentence.startswith("one and other do not differ significantly: ")


def test_equal_searches_are_ties() -> None:
    values = [1.5, 2.0, 3.0, 2.5]
    (found,) = differences(finals("one", values) + finals("other", values))
    assert (found.ratio.value, found.beats.value, found.p, found.is_real) == (1.0, 0.5, 1.0, False)


def test_only_pairs_count_and_two_are_too_few() -> None:
    (found,) = differences(finals("one", [2.0, 3.0]) + finals("other", [1.0, 1.0, 1.0, 1.0]))
    assert (found.pairs, found.is_real) == (2, False)
    assert found.sentence == "one and other: 2 pairs are too few to compare."


def test_five_agreeing_pairs_are_not_significant() -> None:
    (found,) = differences(
        finals("one", [2.0, 2.1, 2.2, 2.3, 2.4]) + finals("other", [1.0, 1.0, 1.1, 1.1, 1.2])
    )
    assert not found.is_real
    assert found.p == pytest.approx(1 / 16)
    assert found.sentence.endswith("5 pairs; a significant difference needs at least 6.")


def test_means_are_geometric() -> None:
    assert means(finals("one", [1.0, 4.0, 2.0]))["one"].value == pytest.approx(2.0)


def test_a_curve_is_read_at_amounts() -> None:
    points = [Point(), Point(evaluations=2, speedup=1.5), Point(evaluations=5, speedup=3.0)]
    assert best_at(points, "evaluations", [0, 1, 2, 4, 5, 9]) == [1.0, 1.0, 1.5, 1.5, 3.0, 3.0]
