"""Problems that are not timed: cases that a kernel has to be right on, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.device import worker as module
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.device.worker import Worker
from evaluators.evaluation import Status
from evaluators.opening import OpeningStep
from evaluators.problem import Kernel, Problem
from tests.evaluators.device.kernels import HONEST, PROBLEM, REFERENCE, forward

pytestmark = pytest.mark.slow
UNTIMED = replace(PROBLEM, timed=False)
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


def test_kernels_are_checked_as_on_any_other(second: Worker) -> None:
    honest = second.measure(UNTIMED, kernel(HONEST), b"", thorough=True)
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
        ("while True: pass", Status.TIMEOUT),
    ]:
        found = second.measure(UNTIMED, kernel(forward(body)), b"")
        assert found.status is status, (body, found.log)


def test_the_runner_that_waits_is_the_next_cases(second: Worker) -> None:
    second.close()
    assert second.measure(untimed(96), kernel(HONEST), b"").status is Status.CORRECT
    waiting = second._open.in_use.prefork._child.pid
    assert second._device_processes.fork_server._children.keys() == {waiting}
    assert second.measure(untimed(112), kernel(HONEST), b"").status is Status.CORRECT
    assert second._open.in_use.prefork._child.pid != waiting, "it was taken"
    assert len(second._device_processes.fork_server._children) == 1


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
        second.open(replace(UNTIMED, source=REFERENCE.replace("return x\n", "return 0 * x\n")))
    assert second._device_processes is processes
    assert second._open.in_use.problem.id == UNTIMED.id
    assert second.measure(UNTIMED, kernel(HONEST), b"").status is Status.CORRECT
