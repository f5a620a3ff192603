"""The verdicts of one search of a comparison are shared with the others, and with a resumed comparison."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Evaluation, Status
from search.compare.shared_verdicts import SharedVerdicts
from tests.search.fakes import PROBLEM, FakeEvaluator, kernel

KERNELS = [kernel(number) for number in range(3)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def ignore(count: int) -> None:
    """Shows nothing."""


@pytest.mark.anyio
async def test_each_kernel_is_measured_once(tmp_path: Path) -> None:
    evaluator, told = FakeEvaluator(delay_s=0.01), []
    verdicts = SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", told.append)
    searches = [verdicts.for_search() for _ in range(3)]
    found = await asyncio.gather(*(each.evaluate(PROBLEM, KERNELS[0]) for each in searches))
    later = await searches[0].evaluate(PROBLEM, KERNELS[0])
    assert found[0] == found[1] == found[2] == later
    assert evaluator.seen[KERNELS[0].id] == 1
    assert told == [1]


@pytest.mark.anyio
async def test_a_final_measurement_is_separate(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    verdicts = SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore)
    search = verdicts.for_search()
    await search.evaluate(PROBLEM, KERNELS[0])
    await search.evaluate(PROBLEM, KERNELS[0], thorough=True)
    await verdicts.for_search().evaluate(PROBLEM, KERNELS[0], thorough=True)
    assert evaluator.seen[KERNELS[0].id] == 1
    assert evaluator.confirmed == [KERNELS[0].id]


@pytest.mark.anyio
async def test_repeating_a_session_measures_again(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    verdicts = SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore)
    one, other = verdicts.for_search(), verdicts.for_search()
    there = await one.compare(PROBLEM, KERNELS)
    back = await other.compare(PROBLEM, KERNELS[::-1])
    assert back == there[::-1]
    assert len(evaluator.compared) == 1
    await one.compare(PROBLEM, KERNELS)
    assert len(evaluator.compared) == 2


@pytest.mark.anyio
async def test_a_search_can_share_nothing(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    verdicts = SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore)
    for name in ("one", "other", "one"):
        await verdicts.for_search(name).evaluate(PROBLEM, KERNELS[0])
    assert evaluator.seen[KERNELS[0].id] == 2


@pytest.mark.anyio
async def test_stored_verdicts_are_reused(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    verdicts = SharedVerdicts(FakeEvaluator(), path, ignore)
    before = await verdicts.for_search().evaluate(PROBLEM, KERNELS[0])
    together = await verdicts.for_search().compare(PROBLEM, KERNELS)
    with path.open("a") as file:
        file.write('{"key": "half a li')  # of a process that was killed
    evaluator = FakeEvaluator()
    verdicts = SharedVerdicts(evaluator, path, ignore)
    assert await verdicts.for_search().evaluate(PROBLEM, KERNELS[0]) == before
    assert await verdicts.for_search().compare(PROBLEM, KERNELS) == together
    assert not evaluator.seen
    assert not evaluator.compared


@pytest.mark.anyio
async def test_infrastructure_failures_are_not_kept(tmp_path: Path) -> None:
    failed = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log="The device is gone.")
    evaluator = FakeEvaluator(verdict=lambda kernel: failed)
    verdicts = SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore)
    for _ in range(2):
        assert (await verdicts.for_search().evaluate(PROBLEM, KERNELS[0])) == failed
    assert evaluator.seen[KERNELS[0].id] == 2
    assert not (tmp_path / "verdicts.jsonl").exists()


class Gated(FakeEvaluator):
    """Measures once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def evaluate(self, *arguments: Any, **more: Any) -> Evaluation:
        await self.gate.wait()
        return await super().evaluate(*arguments, **more)


@pytest.mark.anyio
async def test_cancelling_one_caller_keeps_the_measurement(tmp_path: Path) -> None:
    evaluator = Gated()
    verdicts = SharedVerdicts(evaluator, tmp_path / "verdicts.jsonl", ignore)
    first = asyncio.create_task(verdicts.for_search().evaluate(PROBLEM, KERNELS[0]))
    second = asyncio.create_task(verdicts.for_search().evaluate(PROBLEM, KERNELS[0]))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    evaluator.gate.set()
    assert (await second).status.is_of_the_kernel
    assert evaluator.seen[KERNELS[0].id] == 1
