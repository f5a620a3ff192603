"""Differences between arms: planted ones are found, and noise is not."""

from __future__ import annotations

import math
import random

import pytest

from search.compare.curves import Point, Searched, best_at, curve
from search.compare.statistics import differences, fewest_significant, means


def finals(arm: str, values: list[float], problem: str = "p") -> list[Searched]:
    return [
        Searched(problem=problem, arm=arm, seed=seed, reason="", final=value, points=(Point(),))
        for seed, value in enumerate(values)
    ]


def drawn(
    rng: random.Random, n: int, *, gain: float = 0.0, arms: tuple[str, ...] = ("one", "other")
) -> list[Searched]:
    """Arms with the same levels by seed; those after the first are better by the logarithm `gain`."""
    places = [rng.gauss(0.7, 0.4) for _ in range(n)]
    gains = [gain if number else 0.0 for number in range(len(arms))]
    return [
        each
        for arm, own in zip(arms, gains, strict=True)
        for each in finals(arm, [math.exp(place + own + rng.gauss(0, 0.1)) for place in places])
    ]


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


NINE = tuple("abcdefghi")


@pytest.mark.slow
def test_of_nine_equal_arms_rarely_any_two_differ() -> None:
    rng = random.Random(9)
    wrong = sum(any(each.is_real for each in differences(drawn(rng, 20, arms=NINE))) for _ in range(20))
    assert wrong <= 3, "binomially, more than 3 of 20 come once in 60 times at 5 %"


def test_p_values_are_corrected_for_the_number_of_contrasts() -> None:
    found = differences(drawn(random.Random(4), 20, gain=0.05, arms=NINE))
    assert {each.contrasts for each in found} == {36}
    ordered = sorted(found, key=lambda each: each.p)
    assert ordered[0].p_corrected == pytest.approx(min(1, 36 * ordered[0].p))
    assert ordered[1].p_corrected == pytest.approx(min(1, max(36 * ordered[0].p, 35 * ordered[1].p)))
    assert ordered[-1].p_corrected <= 1
    lost = next(each for each in ordered if each.p < 0.05 <= each.p_corrected)
    assert not lost.is_real
    assert "do not differ significantly" in lost.sentence
    assert lost.sentence.endswith(" corrected for 36 contrasts).")


def test_the_primary_contrast_is_tested_alone() -> None:
    first, *others = differences(drawn(random.Random(4), 20, gain=0.05, arms=NINE), primary=["c", "a"])
    assert (first.first, first.second, first.contrasts) == ("a", "c", 1)
    assert first.is_primary
    assert first.p == first.p_corrected
    assert "(primary contrast)" in first.sentence
    assert {each.contrasts for each in others} == {35}
    assert not any(each.is_primary for each in others)


@pytest.mark.parametrize(("contrasts", "fewest"), [(1, 6), (3, 7), (36, 11)])
def test_more_contrasts_need_more_pairs(contrasts: int, fewest: int) -> None:
    assert fewest_significant(contrasts) == fewest
    assert contrasts * 2.0 ** (1 - fewest) < 0.05 <= contrasts * 2.0 ** (2 - fewest)


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
    points = [Point(), Point(evaluations=2, speedup=0.5), Point(evaluations=5, speedup=3.0)]
    assert best_at(points, "evaluations", [0, 1, 2, 4, 5, 9]) == [0, 0, 0.5, 0.5, 3.0, 3.0]


def test_a_curve_begins_with_the_first_correct_kernels() -> None:
    firsts = [1, 2, 3]
    searches = [
        Searched(
            problem="p",
            arm="a",
            seed=first,
            reason="",
            final=1.0,
            points=(Point(), Point(evaluations=first, speedup=0.2 * first)),
        )
        for first in firsts
    ]
    found = curve(searches, "evaluations", [0, 1, 2, 3])
    assert found.amounts == (2, 3)
    assert found.median == pytest.approx((0.2, 0.4))
    assert math.isnan(found.low[0])
    assert found.low[1] == pytest.approx(0.3)
