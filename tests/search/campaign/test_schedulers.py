"""Which search gets the next slice, and when a search stops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from search.campaign.schedulers import Equal, ExpectedGain
from search.campaign.slices import SearchProgress, Slice, StopRules


def of(
    problem: str, speedups: Sequence[float], ceiling: float | None = None, **more: object
) -> SearchProgress:
    slices = tuple(Slice(evaluations=10, speedup=each) for each in speedups)
    return SearchProgress(problem=problem, arm="a", slices=slices, ceiling=ceiling, **more)  # type: ignore[arg-type]


def test_gains_are_logarithmic() -> None:
    search = of("x", [0.0, 1.0, 2.0, 2.0])
    assert search.gains == pytest.approx([0.0, math.log(10), math.log(2), 0.0])
    assert of("x", [2.0], ceiling=4.0).headroom == pytest.approx(math.log(2))
    assert of("x", [2.0]).headroom == math.inf
    assert SearchProgress.from_json(search.to_json()) == search


def test_equal_shares() -> None:
    searches = [of("x", [1.0, 1.0]), of("y", [1.0]), of("z", [1.0])]
    chosen = Equal().choose(searches, {"y a"})
    assert chosen is not None
    assert chosen.problem == "z"
    assert Equal().choose(searches, {"x a", "y a", "z a"}) is None


def test_new_searches_come_first_then_those_that_gain() -> None:
    stuck, gaining, near = (
        of("stuck", [1.5, 1.5, 1.5]),
        of("gaining", [1.2, 1.5]),
        of("near", [1.2, 1.9], 2.0),
    )
    fresh = of("fresh", [])
    by_gain = ExpectedGain()
    first = by_gain.choose([stuck, gaining, near, fresh], set())
    assert first is not None
    assert first.problem == "fresh"
    second = by_gain.choose([stuck, gaining, near], set())
    assert second is not None
    assert second.problem == "gaining", "the roofline leaves the other little"
    third = by_gain.choose([stuck, near], set())
    assert third is not None
    assert third.problem == "near"


def test_searches_that_can_reach_the_target_are_preferred() -> None:
    below, above = of("below", [0.5, 0.8], 3.0), of("above", [2.0, 3.2], 9.0)
    hopeless = of("hopeless", [0.5, 0.8], 0.9)
    by_gain = ExpectedGain(target=1.0, boost=3.0)
    assert by_gain.expected(below) == pytest.approx(3 * ExpectedGain(target=None).expected(below))
    assert by_gain.choose([above, below], set()) is below
    assert by_gain.expected(hopeless) < by_gain.expected(above)
    indifferent = ExpectedGain(target=None)
    assert indifferent.choose([above, below], set()) in (above, below)


def test_the_bonus_of_a_stuck_search_shrinks() -> None:
    by_gain = ExpectedGain()
    worth = [by_gain.expected(of("x", [2.0] * n)) for n in range(3, 8)]
    assert worth == sorted(worth, reverse=True)
    assert min(worth) > 0
    with pytest.raises(ValueError, match=r"scheduler\.hope is 0"):
        ExpectedGain(hope=0)


@pytest.mark.parametrize(
    ("search", "why"),
    [
        (of("x", [1.0, 1.2]), ""),
        (of("x", [1.9], ceiling=2.0), "95% of the roofline"),
        (of("x", [1.5, 1.5, 1.5, 1.5, 1.5]), "no gain in 4 slices"),
        (of("x", [1.5, 1.5, 1.5]), ""),
        (of("x", [1.0] * 2 + [1.5] * 3), ""),
    ],
)
def test_stop_rules(search: SearchProgress, why: str) -> None:
    assert StopRules().why(search) == why


def test_stop_rules_of_failures_and_limits() -> None:
    failing = SearchProgress(problem="x", arm="a", slices=(Slice(evaluations=50, failures=45),))
    assert StopRules().why(failing) == "45 failures in a row"
    long = SearchProgress(problem="x", arm="a", slices=(Slice(evaluations=50, seconds=70.0, speedup=2.0),))
    assert StopRules(evaluations=50).why(long) == "50 evaluations"
    assert StopRules(seconds=60).why(long) == "70 s"
    assert StopRules(evaluations=60, seconds=80).why(long) == ""
