"""Time limits: waiting for a core does not count; sleeping and computing do. The tests compare CPU time, or
times that are far apart: on a busy machine they only take longer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import pytest

from evaluators.system import deadline as deadline_module
from evaluators.system.deadline import Deadline, _Waiting
from evaluators.system.process_tree import cpu_s, stat_fields
from tests.evaluators.conftest import BURN, burning

IN_A_THREAD = f"import threading\nthread = threading.Thread(target=exec, args=[{BURN!r}])\nthread.start()"
"""And the first one waits until the other ends."""
ASLEEP = "import time\ntime.sleep(600)"
SLACK_S = 0.2
"""CPU time that may pass between two looks at a deadline."""


@contextlib.contextmanager
def running(code: str, *, count: int = 1, niceness: int = 0) -> Iterator[list[int]]:
    """`count` processes, all on one core; yields their ids."""
    core = min(os.sched_getaffinity(0))

    def begin() -> None:
        os.sched_setaffinity(0, {core})
        os.nice(niceness)

    started = [subprocess.Popen([sys.executable, "-c", code], preexec_fn=begin) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture
def endless_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "PATIENCE", 1000)


def used_until_over(limit_s: float, pids: Iterable[int]) -> float:
    """CPU seconds that the processes use from now until their deadline expires."""
    before, deadline = cpu_s(pids), Deadline(limit_s)
    while not deadline.is_over(pids):
        time.sleep(0.01)
    return cpu_s(pids) - before


def wait_for_state(pid: int, state: str) -> None:
    """Waits until the process is in this state."""
    while stat_fields(pid)[0] != state:
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("endless_patience")
@pytest.mark.parametrize("code", [BURN, IN_A_THREAD], ids=["first thread", "another thread"])
def test_waiting_for_a_core_does_not_count(code: str) -> None:
    with running(BURN, count=2), running(code) as starved:
        time.sleep(0.5)  # until it computes
        assert used_until_over(0.5, starved) == pytest.approx(0.5, abs=SLACK_S)


@pytest.mark.slow
def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "PATIENCE", 3)
    with running(BURN, count=2), running(BURN, niceness=19) as starved:
        assert used_until_over(0.5, starved) < 0.25, "it got no core for three times its limit"


@pytest.mark.slow
@pytest.mark.usefixtures("endless_patience")
def test_processes_that_wait_for_one_another_use_up_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with running(BURN, count=4) as crowd:
        assert used_until_over(0.5, crowd) == pytest.approx(0.5, abs=SLACK_S)


@pytest.mark.slow
@pytest.mark.usefixtures("endless_patience")
def test_cpu_time_from_before_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with running(BURN, count=4) as crowd:
        while cpu_s(crowd) < 0.5:
            time.sleep(0.01)
        assert used_until_over(0.5, crowd) == pytest.approx(0.5, abs=SLACK_S)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["S", "T"], ids=["asleep", "stopped"])
def test_sleep_counts_and_waits_from_before_do_not(state: str) -> None:
    """Before the deadline began, the process waited for a core for about a second."""
    with running(BURN, count=2), running(BURN if state == "T" else ASLEEP) as pids:
        time.sleep(1.5)
        if state == "T":
            os.kill(pids[0], signal.SIGSTOP)
        wait_for_state(pids[0], state)
        deadline = Deadline(0.3)
        assert not deadline.is_over(pids)
        time.sleep(0.4)
        assert deadline.is_over(pids)
        assert deadline.reason == "within 0.3 s"


@pytest.mark.slow
def test_waits_of_our_processes_do_not_count_either() -> None:
    with running(BURN, count=3) as starved, running(ASLEEP) as asleep:
        wait_for_state(asleep[0], "S")
        deadline = Deadline(0.5)
        deadline.is_over(asleep, starved)
        start = time.monotonic()
        while not deadline.is_over(asleep, starved):
            time.sleep(0.01)
        assert time.monotonic() - start > 0.7


def test_a_process_that_just_woke_up_did_not_wait_while_it_slept() -> None:
    with burning(1) as pids:
        os.kill(pids[0], signal.SIGSTOP)
        wait_for_state(pids[0], "T")
        waiting = _Waiting(pids[0], 0.0)
        assert waiting.more_s(10.0) == pytest.approx(0, abs=1e-9)
        os.kill(pids[0], signal.SIGCONT)
        assert waiting.more_s(10.1) < 1.0, "that it slept for 10 s is no wait"


def test_a_process_that_is_gone_does_not_wait() -> None:
    deadline = Deadline(0.1)
    assert not deadline.is_over([2**22 + 1])
    time.sleep(0.15)
    assert deadline.is_over([2**22 + 1])


def test_the_reason_includes_the_waiting_time() -> None:
    deadline = Deadline(30)
    deadline._waited_s = 12.3
    assert deadline.reason == "within 30 s, 12 s of waiting for a core not counted"
