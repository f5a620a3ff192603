"""Which of the kernels that share calls are placed."""

from __future__ import annotations

import random
import time
from itertools import chain, combinations

import pytest

from search.optimize.extraction.record import ExtractedProblem, Place
from search.optimize.installation.placement import assign_places


def problem(name: str, *calls: tuple[int, ...]) -> ExtractedProblem:
    own = tuple(Place(calls=each, site="", time_ms=1.0) for each in calls)
    return ExtractedProblem(name=name, target=name, places=own, floor_ms=0.0, exact=True)


def calls_of(saved_ms: dict[str, float], *problems: ExtractedProblem) -> dict[str, list[tuple[int, ...]]]:
    found = assign_places(saved_ms, problems)
    return {each.name: [place.calls for place in own] for each, own in found.items()}


def test_no_call_has_two_kernels() -> None:
    both, single, other = problem("both", (0, 1), (5, 6)), problem("single", (1,), (9,)), problem("o", (7,))
    saved = {"both": 3.0, "single": 1.0, "o": 0.5}
    assert calls_of(saved, single, both, other) == {"both": [(0, 1), (5, 6)], "single": [(9,)], "o": [(7,)]}
    found = calls_of({"both": 1.0, "single": 3.0}, single, both, other)
    assert found == {"single": [(1,), (9,)], "both": [(5, 6)]}


def test_two_kernels_for_one_that_saves_less_than_both() -> None:
    whole, product, activation = (
        problem("whole", (0, 1)),
        problem("product", (0,)),
        problem("activation", (1,)),
    )
    saved = {"whole": 3.0, "product": 2.0, "activation": 1.5}
    assert calls_of(saved, whole, product, activation) == {"product": [(0,)], "activation": [(1,)]}
    assert calls_of({**saved, "activation": 0.9}, whole, product, activation) == {"whole": [(0, 1)]}


@pytest.mark.slow
def test_the_choice_is_close_to_the_best() -> None:
    rng, shares = random.Random(0), []
    for _ in range(30):
        problems = [
            problem(
                str(n),
                *{tuple(range(start, start + rng.randint(1, 4))) for start in rng.sample(range(12), 2)},
            )
            for n in range(6)
        ]
        saved = {each.name: rng.uniform(0.5, 3) for each in problems}
        options = [(saved[one.name] / len(one.places), place) for one in problems for place in one.places]
        subsets = chain.from_iterable(combinations(options, n) for n in range(1, 8))
        best = max(
            sum(worth for worth, _ in some) for some in subsets if _apart([place for _, place in some])
        )
        found = assign_places(saved, problems)
        assert _apart([place for own in found.values() for place in own])
        got = sum(saved[one.name] / len(one.places) * len(own) for one, own in found.items())
        shares.append(got / best)
    assert min(shares) > 0.9 and sum(share > 0.999 for share in shares) >= 25


def _apart(places: list[Place]) -> bool:
    calls = [call for place in places for call in place.members]
    return len(calls) == len({*calls})


def test_a_thousand_places_take_seconds() -> None:
    problems = [problem(str(n), *((4 * k + n % 3, 4 * k + n % 3 + 1) for k in range(100))) for n in range(10)]
    start = time.process_time()
    assign_places({each.name: 1.0 + n for n, each in enumerate(problems)}, problems)
    assert time.process_time() - start < 5
