"""Many searches: their plan, and the loop that runs them concurrently."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from search.run.searches import planned_searches, run_all


def test_a_plan_has_each_seed_problem_and_arm() -> None:
    problems, arms = {"a": ["problem=a"], "b": ["problem=b"]}, {"one": [], "two": ["branch=2"]}
    plan = planned_searches(Path("out"), problems, arms, ["rounds=3"], seeds=(4, 5))
    assert [(each.seed, each.problem, each.arm) for each in plan[:5]] == [
        (4, "a", "one"),
        (4, "a", "two"),
        (4, "b", "one"),
        (4, "b", "two"),
        (5, "a", "one"),
    ]
    assert plan[3].overrides == ("problem=b", "rounds=3", "branch=2")
    assert plan[3].folder == Path("out/b/two/seed_4")
    (single,) = planned_searches(Path("out"), {"a": ["problem=a"]}, {"one": []}, [])
    assert (single.seed, single.folder) == (None, Path("out/a/one"))


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_no_more_jobs_than_allowed_run_concurrently(at_once: int) -> None:
    running, most, ended = 0, 0, list[int]()

    async def job(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        ended.append(number)

    asyncio.run(run_all(map(job, range(5)), at_once))
    assert (most, sorted(ended)) == (min(at_once, 5), list(range(5)))


def test_an_error_cancels_the_other_jobs() -> None:
    cancelled = []

    async def job(number: int) -> None:
        if number == 1:
            raise ValueError("broken")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run_all(map(job, range(4)), 3))
    assert sorted(cancelled) == [0, 2]
