"""Intervals of measures: of shares, of speedups, and of too few problems."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from scipy import stats

from evaluators.records.scores import Scored, compiled, correct, fast_p, geometric_mean, median, pass_at_k


def scored(*speedups: Sequence[float], weight: float = 1.0) -> list[Scored]:
    return [
        Scored(problem=str(n), speedups=each, compiled=[True] * len(each), weight=weight)
        for n, each in enumerate(speedups)
    ]


@pytest.mark.parametrize(
    ("right", "of"), [(0, 1), (1, 1), (0, 3), (3, 3), (2, 3), (0, 100), (57, 100), (100, 100)]
)
def test_a_share_has_wilsons_interval(right: int, of: int) -> None:
    problems = scored(*[[2.0]] * right, *[[0.0]] * (of - right))
    known = stats.binomtest(right, of).proportion_ci(method="wilson")
    for found in (correct(problems), fast_p(problems, 1.0), pass_at_k(problems, 1)):
        assert (found.value, found.low, found.high) == pytest.approx(
            (right / of, known.low, known.high), abs=1e-6
        )
        assert found.low < found.high, "a share of few samples is no point"
        assert 0 <= found.low <= found.value <= found.high <= 1
    assert compiled(problems).low == pytest.approx(stats.binomtest(of, of).proportion_ci(method="wilson").low)


def test_samples_of_one_problem_count_as_one() -> None:
    one, three = correct(scored([0.0, 0.0, 0.0])), correct(scored([0.0], [0.0], [0.0]))
    assert one.value == three.value == 0.0
    assert one.high > three.high > 0.5


def test_equal_weights_change_nothing_and_unequal_ones_widen() -> None:
    plain, heavy = scored([2.0], [0.0], [2.0]), scored([2.0], [0.0], [2.0], weight=7.0)
    assert correct(plain) == pytest.approx(correct(heavy)) or str(correct(plain)) == str(correct(heavy))
    mixed = [*scored([2.0], weight=9.0), *scored([0.0], [2.0])]
    found, few = correct(mixed), correct(plain)
    assert found.high - found.low > few.high - few.low


def test_the_speedup_of_few_problems_has_no_interval() -> None:
    for found in (
        geometric_mean(scored([2.0], [3.0])),
        median(scored([2.0], [3.0])),
        geometric_mean(scored([2.0])),
    ):
        assert str(found).endswith(" (too few)") and found.interval == ""
        kept = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert kept == {"value": found.value, "low": None, "high": None}
    enough = geometric_mean(scored([2.0], [3.0], [4.0]))
    assert 2 <= enough.low < enough.value < enough.high <= 4.001
    nothing = geometric_mean(scored([0.0]))
    assert str(nothing) == "-" and math.isnan(nothing.value) and nothing.to_json()["value"] is None
