"""Which problems stay open in addition to the one in use."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from evaluators.device.child_processes import ProblemProcesses
from evaluators.device.open_problems import LEAST_OPEN, MOST_OPEN, OpenProblems
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel
from tests.evaluators.device.kernels import HONEST, PROBLEM


class Processes:
    """A problem's processes, which record what is done to them."""

    def __init__(self, name: str, *, is_small: bool = True, share: float = 0.0) -> None:
        self.problem = SimpleNamespace(id=name)
        self.is_small, self.memory_share = is_small, share
        self.done: list[str] = []
        self.prefork = SimpleNamespace(stop=lambda: self.done.append("stopped"))

    def close(self) -> None:
        self.done.append("closed")


def opened(*processes: Any) -> OpenProblems:
    problems = OpenProblems()
    for each in processes:
        problems.add(each)
    return problems


def test_the_ones_used_last_stay() -> None:
    made = [Processes(str(number)) for number in range(MOST_OPEN + 2)]
    problems = opened(*made)
    assert problems.use("0") is made[0]
    problems.make_room()
    assert [each.problem.id for each in made if each.done[-1] == "closed"] == ["1", "2", "3"]
    assert problems.in_use is made[0]
    assert problems.use("1") is None
    assert len(problems) == MOST_OPEN - 1


@pytest.mark.parametrize(("share", "stay"), [(0.02, 12), (0.1, LEAST_OPEN - 1)])
def test_the_memory_limits_how_many_stay(share: float, stay: int) -> None:
    made = [Processes(str(number), share=share) for number in range(MOST_OPEN)]
    problems = opened(*made)
    problems.make_room()
    assert len(problems) == stay
    assert problems.in_use is made[-1]
    assert made[-stay].done[-1:] != ["closed"] and made[-stay - 1].done[-1] == "closed"


def test_a_large_one_is_closed_for_the_next() -> None:
    large, small = Processes("large", is_small=False), Processes("small")
    problems = opened(small, large)
    problems.make_room()
    assert (large.done, small.done) == (["closed"], ["stopped"])
    problems.make_room(all_of_it=True)
    assert small.done[-1] == "closed"
    assert problems.in_use is None


def test_problems_that_are_not_in_use_are_stopped() -> None:
    one, other = Processes("one"), Processes("other")
    problems = opened(one, other)
    assert (one.done, other.done) == (["stopped"], [])
    problems.use("one")
    assert (one.done, other.done) == (["stopped"], ["stopped"])


@pytest.mark.parametrize(
    ("facts", "is_small"),
    [
        ({"buffer_bytes": "100", "baseline_bytes": "0", "total_memory": "10000"}, True),
        ({"buffer_bytes": "101", "baseline_bytes": "0", "total_memory": "10000"}, False),
        ({"buffer_bytes": "1", "baseline_bytes": "298", "total_memory": "10000"}, False),
        ({"buffer_bytes": str(2**40), "baseline_bytes": "0"}, False),
    ],
)
def test_small_is_a_share_of_the_devices_memory(facts: dict[str, str], is_small: bool) -> None:
    processes = ProblemProcesses.__new__(ProblemProcesses)
    processes.facts = facts
    assert processes.is_small is is_small


def test_an_open_problem_counts_with_its_processes() -> None:
    processes = ProblemProcesses.__new__(ProblemProcesses)
    processes.facts = {"buffer_bytes": "0", "baseline_bytes": str(2**30), "total_memory": str(80 * 2**30)}
    assert processes.memory_share == 2 / 80


@pytest.mark.slow
def test_a_problem_that_is_used_again_is_not_opened_again(second: Worker) -> None:
    kernel = Kernel(source=HONEST, language="cpp")
    other = replace(PROBLEM, name="file/other", tolerance="kernelbench")
    first = second.opening(PROBLEM)
    baseline = second._open.in_use.eager.pid
    assert second.measure(other, kernel, b"").status is Status.CORRECT
    assert second._open.in_use.eager.pid != baseline
    assert second.measure(PROBLEM, kernel, b"").status is Status.CORRECT
    assert second._open.in_use.eager.pid == baseline
    assert second.opening(PROBLEM) is first
    second.audit(PROBLEM)
    assert second._open.in_use is None
    assert second.measure(other, kernel, b"").status is Status.CORRECT


@pytest.mark.slow
def test_the_other_problems_close_if_memory_is_lacking(
    second: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    second.open(PROBLEM)
    ask, asked = Worker._ask_to_open, []

    def lacks_memory(worker: Worker, processes: ProblemProcesses) -> Any:
        asked.append(len(worker._open))
        if len(asked) > 1:
            return ask(worker, processes)
        processes.eager.channel.close()
        return {"op": "failed", "error": "others hold it", "of_memory": True}

    monkeypatch.setattr(Worker, "_ask_to_open", lacks_memory)
    second.open(replace(PROBLEM, floor=False))
    assert asked[0] > 0
    assert asked[1:] == [0]
