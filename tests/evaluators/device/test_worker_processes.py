"""The death of one of the worker's own processes, or of the waiting runner, is no kernel's fault."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from evaluators.device.child_processes import WorkerBroken
from evaluators.device.worker import Worker
from evaluators.isolation import namespaces
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel
from evaluators.system import process_tree
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.kernels import HONEST, PROBLEM, SETTINGS, forward

pytestmark = pytest.mark.slow


SLOW = forward("time.sleep(0.3)\nreturn honest(self, x)")


@pytest.mark.parametrize(
    ("victim", "when"), [("judge process", "measuring"), ("fork server", "idle"), ("baseline", "measuring")]
)
def test_the_death_of_one_of_our_processes_is_not_the_kernels_fault(
    second: Worker, victim: str, when: str
) -> None:
    second.open(PROBLEM)
    pids = {
        "judge process": second._device_processes._judge.pid,
        "fork server": second._device_processes.fork_server._process.pid,
        "baseline": second._open.in_use.eager.pid,
    }
    kernel = Kernel(source=SLOW if when == "measuring" else HONEST, language="cpp")
    killer = threading.Timer(0.6 if when == "measuring" else 0.0, os.kill, (pids[victim], signal.SIGKILL))
    killer.start()
    if when == "idle":
        killer.join()
    with pytest.raises(WorkerBroken) as caught:
        second.measure(PROBLEM, kernel, b"")
    killer.join()
    assert str(caught.value)
    if victim == "judge process":
        found = second.measure(PROBLEM, Kernel(source=HONEST, language="cpp"), b"")
        assert found.status is Status.CORRECT, found.log


def states(pid: int) -> set[str]:
    """The letters of `/proc` for a runner and its descendants ("T": stopped)."""
    found = set()
    for each in (pid, *process_tree.descendants(pid)):
        with contextlib.suppress(FileNotFoundError):
            found.add(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0])
    return found


def test_the_next_runner_starts_during_the_checks_and_is_stopped_during_the_timing(second: Worker) -> None:
    seen: dict[str, tuple[int, set[str]]] = {}

    def note(stage: str) -> None:
        waiting = second._open.in_use.prefork._child
        seen[stage] = (waiting.pid, states(waiting.pid)) if waiting is not None else (0, set())

    honest = Kernel(source=HONEST, language="cpp")
    second.open(PROBLEM)
    second._open.in_use.prefork.drop()
    assert second.measure(PROBLEM, honest, b"", on_stage=note).status is Status.CORRECT
    first, letters = seen["ending"]
    assert letters - {"Z", "D"} == {"T"}, "on its way up it may be in the kernel, and stops then"
    assert seen["loading"][0] == 0, "the baseline is timed then, with nobody beside it"
    assert second._device_processes.fork_server._children.keys() == {second._open.in_use.eager.pid, first}
    assert second.measure(PROBLEM, honest, b"", on_stage=note).status is Status.CORRECT
    assert seen["loading"][0] == 0, "it was taken"
    assert seen["ending"][0] not in (0, first)


@pytest.mark.parametrize("how", ["killed", "folder removed"])
def test_the_death_of_a_waiting_runner_is_not_the_next_kernels_fault(second: Worker, how: str) -> None:
    honest = Kernel(source=HONEST, language="cpp")
    second.measure(PROBLEM, honest, b"")
    waiting, folder = second._open.in_use.prefork._child, second._open.in_use.prefork._folder
    if how == "killed":
        namespaces.kill_spawned(waiting.pid)
        assert gone(lambda: [waiting.pid] if Path(f"/proc/{waiting.pid}").exists() else [])
    else:
        folder.rmdir()
        with contextlib.suppress(WorkerBroken):  # the pool tries again; if the runner was starting, we do
            second.measure(PROBLEM, honest, b"")
    assert second.measure(PROBLEM, honest, b"").status is Status.CORRECT
    assert not folder.exists()


def test_closing_leaves_nothing_and_is_not_the_end(tmp_path: Path, marked: Marked) -> None:
    before = set(marked())
    worker = Worker(root=tmp_path, settings=SETTINGS)
    worker.close()
    worker.open(PROBLEM)
    assert set(marked()) - before
    worker.close()
    worker.close()
    assert gone(lambda: sorted(set(marked()) - before))
