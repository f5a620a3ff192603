"""What one search of a comparison had measured is there for the others, and for a comparison that goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evaluators.evaluation import Evaluation, Status
from search.comparisons.shared_verdicts import SharedVerdicts
from tests.search.fakes import PROBLEM, FakeEvaluator, kernel

KERNELS = [kernel(number) for number in range(3)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def ignore(count: int) -> None:
    """Nobody looks."""


@pytest.mark.anyio
async def test_a_kernel_is_measured_once_for_all(tmp_path: Path) -> None:
    evaluator, told = FakeEvaluator(delay_s=0.01), []
    with SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", told.append) as verdicts:
        searches = [verdicts.of_a_search() for _ in range(3)]
        found = await asyncio.gather(*(each.evaluate(PROBLEM, KERNELS[0]) for each in searches))
        later = await searches[0].evaluate(PROBLEM, KERNELS[0])
    assert found[0] == found[1] == found[2] == later
    assert evaluator.seen[KERNELS[0].id] == 1
    assert told == [1]


@pytest.mark.anyio
async def test_a_final_measurement_is_one_of_its_own(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    with SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore) as verdicts:
        search = verdicts.of_a_search()
        await search.evaluate(PROBLEM, KERNELS[0])
        await search.evaluate(PROBLEM, KERNELS[0], thorough=True)
        await verdicts.of_a_search().evaluate(PROBLEM, KERNELS[0], thorough=True)
    assert evaluator.seen[KERNELS[0].id] == 1
    assert evaluator.confirmed == [KERNELS[0].id]


@pytest.mark.anyio
async def test_who_asks_for_the_same_session_again_learns_something_new(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    with SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore) as verdicts:
        one, other = verdicts.of_a_search(), verdicts.of_a_search()
        there = await one.compare(PROBLEM, KERNELS)
        back = await other.compare(PROBLEM, KERNELS[::-1])
        assert back == there[::-1]
        assert len(evaluator.compared) == 1
        await one.compare(PROBLEM, KERNELS)
        assert len(evaluator.compared) == 2


@pytest.mark.anyio
async def test_a_search_that_shares_nothing_has_its_own(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    with SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore) as verdicts:
        for name in ("one", "other", "one"):
            await verdicts.of_a_search(name).evaluate(PROBLEM, KERNELS[0])
    assert evaluator.seen[KERNELS[0].id] == 2


@pytest.mark.anyio
async def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    with SharedVerdicts(FakeEvaluator(), path, ignore) as verdicts:
        before = await verdicts.of_a_search().evaluate(PROBLEM, KERNELS[0])
        together = await verdicts.of_a_search().compare(PROBLEM, KERNELS)
    with path.open("a") as file:
        file.write('{"asked": ["half a li')  # of a process that was killed
    evaluator = FakeEvaluator()
    with SharedVerdicts(evaluator, path, ignore) as verdicts:
        assert await verdicts.of_a_search().evaluate(PROBLEM, KERNELS[0]) == before
        assert await verdicts.of_a_search().compare(PROBLEM, KERNELS) == together
    assert not evaluator.seen
    assert not evaluator.compared


@pytest.mark.anyio
async def test_our_own_failures_are_not_kept(tmp_path: Path) -> None:
    failed = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log="The device is gone.")
    evaluator = FakeEvaluator(verdict=lambda kernel: failed)
    with SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore) as verdicts:
        for _ in range(2):
            assert (await verdicts.of_a_search().evaluate(PROBLEM, KERNELS[0])) == failed
    assert evaluator.seen[KERNELS[0].id] == 2
    assert not (tmp_path / "verdicts.jsonl").read_text()


@pytest.mark.anyio
async def test_who_stops_waiting_takes_the_measurement_from_nobody(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(delay_s=0.05)
    with SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore) as verdicts:
        first = asyncio.create_task(verdicts.of_a_search().evaluate(PROBLEM, KERNELS[0]))
        second = asyncio.create_task(verdicts.of_a_search().evaluate(PROBLEM, KERNELS[0]))
        await asyncio.sleep(0.01)
        first.cancel()
        assert (await second).status.is_of_the_kernel
        with pytest.raises(asyncio.CancelledError):
            await first
    assert evaluator.seen[KERNELS[0].id] == 1
