"""Problems that are not timed: cases in which a kernel only has to be right."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from evaluators.device import worker as module
from evaluators.device.child_processes import ProblemProcesses, UnfitProblem, WorkerBroken
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Status
from evaluators.records.opening import OpeningStep
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import Effort
from evaluators.system import process_tree
from tests.evaluators.device.kernels import HONEST, PROBLEM, REFERENCE, forward

pytestmark = pytest.mark.slow
UNTIMED = replace(PROBLEM, timed=False)
ZEROS = REFERENCE.replace("return x\n", "return 0 * x\n")
OF_THE_BASELINE = {OpeningStep.BASELINE, OpeningStep.WARMING, OpeningStep.CALIBRATION}


def untimed(width: int) -> Problem:
    return replace(UNTIMED, name=f"file/tanhs [{width}]", overrides={"width": width})


def kernel(source: str) -> Kernel:
    return Kernel(source=source, language="cpp")


def test_it_is_opened_without_a_baseline(second: Worker) -> None:
    opening = second.opening(UNTIMED)
    assert not OF_THE_BASELINE & opening.seconds.keys()
    assert {OpeningStep.DISTRIBUTIONS, OpeningStep.LAZY_ANSWERS} < opening.seconds.keys()
    assert second._open.in_use.eager is None
    assert second.open(UNTIMED)["isolation"] == second.open(PROBLEM)["isolation"] != ""


def test_kernels_are_checked_as_on_any_other(second: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = second.measure(UNTIMED, kernel(HONEST), b"", effort=Effort.THOROUGH)
    assert honest.status is Status.CORRECT, honest.log
    assert honest.timing is None
    assert honest.correctness.checked_calls == 5  # one, one with other weights, three
    timed = second.measure(PROBLEM, kernel(HONEST), b"")
    assert honest.correctness.distributions.keys() == timed.correctness.distributions.keys()
    for body, status in [
        ("return honest(self, x) * 1.01", Status.INCORRECT),
        ("return honest(self, x) if x.abs().max() < 100 else x", Status.INCORRECT),
        ("x[0, 0] = 0\nreturn honest(self, x)", Status.INCORRECT),
        ("os._exit(3)", Status.CRASHED),
    ]:
        found = second.measure(UNTIMED, kernel(forward(body)), b"")
        assert found.status is status, (body, found.log)
    monkeypatch.setattr(second, "_settings", replace(second._settings, timeout_s=2.0))
    hung = second.measure(UNTIMED, kernel(forward("while True: pass")), b"")
    assert hung.status is Status.TIMEOUT, hung.log


def test_the_runner_that_waits_is_the_next_cases(second: Worker) -> None:
    second.close()
    assert second.measure(untimed(96), kernel(HONEST), b"").status is Status.CORRECT
    waiting = second._open.in_use.prefork._child.pid
    assert second._device_processes.fork_server._children.keys() == {waiting}
    assert second.measure(untimed(112), kernel(HONEST), b"").status is Status.CORRECT
    assert second._open.in_use.prefork._child.pid != waiting, "it was taken"
    assert len(second._device_processes.fork_server._children) == 1


ONCE = forward(
    "return honest(self, x)",
    before="assert not os.path.exists('loaded'), 'imported again'\nopen('loaded', 'w')",
)
"""A module that may be imported only once per folder."""
MADE_THREE = (
    HONEST.replace("        self.depth", "        made.append(1)\n        self.depth")
    + "made = []\nhonest = ModelNew.forward\n"
    + "ModelNew.forward = lambda self, x: honest(self, x) * (len(made) < 3)\n"
)
"""Wrong from the third model that its module creates."""


def candidates(worker: Worker) -> set[int]:
    """The processes of the candidates, except the waiting one."""
    waiting = worker._open.in_use.prefork._child
    baselines = (each.eager for each in worker._open._open.values())
    others = {each.pid for each in (waiting, *baselines) if each is not None}
    return worker._device_processes.fork_server._children.keys() - others


def test_a_kernel_is_loaded_once_for_several_cases(second: Worker) -> None:
    for width in (96, 112, 80):
        found = second.measure(untimed(width), kernel(ONCE), b"", more=True)
        assert found.status is Status.CORRECT, found.log
        assert len(candidates(second)) == 1
    assert second.measure(untimed(64), kernel(ONCE), b"").status is Status.CORRECT
    assert not candidates(second), "nothing more was said to come"
    folders = [each for each in second._root.iterdir() if not each.name.startswith(("eager-", "prefork-"))]
    assert not folders


def test_large_cases_have_a_process_each(second: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProblemProcesses, "is_small", False)
    assert second.measure(untimed(96), kernel(ONCE), b"", more=True).status is Status.CORRECT
    assert not candidates(second)
    assert second.measure(untimed(112), kernel(ONCE), b"", more=True).status is Status.CORRECT


def test_leftovers_of_one_case_may_spoil_another(second: Worker) -> None:
    statuses = [
        second.measure(untimed(width), kernel(MADE_THREE), b"", more=True).status for width in (96, 112, 80)
    ]
    assert statuses == [Status.CORRECT, Status.CORRECT, Status.INCORRECT]
    assert not candidates(second), "a wrong one is ended"
    assert second.measure(untimed(80), kernel(MADE_THREE), b"").status is Status.CORRECT


@pytest.mark.parametrize(
    "then", ["another kernel", "a timed case", "a comparison", "an unfit case", "an audit"]
)
def test_a_runner_that_was_kept_is_gone_before_other_work(second: Worker, then: str) -> None:
    assert second.measure(untimed(96), kernel(ONCE), b"", more=True).status is Status.CORRECT
    (kept,) = candidates(second)
    match then:
        case "another kernel":
            assert second.measure(untimed(96), kernel(HONEST), b"").status is Status.CORRECT
        case "a timed case":
            assert second.measure(PROBLEM, kernel(ONCE), b"", more=True).status is Status.CORRECT
        case "a comparison":
            assert [
                each.status for each in second.compare(PROBLEM, [kernel(HONEST)], [b""], effort=Effort.USUAL)
            ] == [Status.CORRECT]
        case "an unfit case":
            with pytest.raises(UnfitProblem):
                second.measure(replace(untimed(96), source=ZEROS), kernel(ONCE), b"")
        case "an audit":
            assert not second.audit(PROBLEM).unfit
    assert not os.path.exists(f"/proc/{kept}")
    assert second.measure(untimed(96), kernel(ONCE), b"").status is Status.CORRECT


def test_a_runner_that_dies_between_two_cases_is_a_crash(second: Worker) -> None:
    assert second.measure(untimed(96), kernel(HONEST), b"", more=True).status is Status.CORRECT
    (kept,) = candidates(second)
    process_tree.kill_tree(kept)
    assert second.measure(untimed(112), kernel(HONEST), b"").status is Status.CRASHED
    assert second.measure(untimed(112), kernel(HONEST), b"").status is Status.CORRECT


def test_the_isolation_is_demanded_there_too(second: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def missing(reached: str, demanded: str) -> list[str]:
        asked.append(reached)
        return ["landlock"]

    second.close()
    monkeypatch.setattr(module.confinement, "missing", missing)
    with pytest.raises(WorkerBroken, match="without landlock"):
        second.open(UNTIMED)
    assert asked[0].startswith("limits")


def test_a_reference_that_hangs_is_unfit(second: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second, "_settings", replace(second._settings, open_timeout_s=1.0))
    source = REFERENCE.replace("        for _ in", "        time.sleep(60)\n        for _ in")
    assert source != REFERENCE
    second.prepare("cpu")
    with pytest.raises(UnfitProblem, match=r"the reference cannot be run: .*within 1 s"):
        second.open(replace(UNTIMED, source=source))
    assert second._device_processes is None


def test_an_unfit_one_leaves_the_others_open(second: Worker) -> None:
    second.open(UNTIMED)
    processes = second._device_processes
    with pytest.raises(UnfitProblem, match="the reference cannot judge a kernel"):
        second.open(replace(UNTIMED, source=ZEROS))
    assert second._device_processes is processes
    assert second._open.in_use.problem.id == UNTIMED.id
    assert second.measure(UNTIMED, kernel(HONEST), b"").status is Status.CORRECT
