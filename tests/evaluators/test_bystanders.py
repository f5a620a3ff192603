"""Who keeps the cores busy: others, or the processes that are asked about."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from evaluators import bystanders
from evaluators.bystanders import PATIENCE, Bystanders, Deadline
from tests.evaluators.conftest import BURN, burning


@pytest.fixture
def burners(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A process for each of two cores, which is all that the machine is said to have."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with burning(2) as pids:
        yield pids


def test_others_that_compute_make_the_machine_busy(burners: list[int]) -> None:
    watched = Bystanders([os.getpid()])
    time.sleep(0.5)
    assert watched.busy([os.getpid()])


def test_those_that_are_asked_about_do_not(burners: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [os.getpid(), *burners]
    watched = Bystanders(ours)
    time.sleep(0.5)
    # Whoever else computes on the machine of a test is let be.
    monkeypatch.setattr(bystanders, "BUSY_SHARE", bystanders.BUSY_SHARE + _share_of_the_rest(ours))
    assert not watched.busy(ours)


def _share_of_the_rest(ours: list[int]) -> float:
    before = bystanders._others_s(ours)
    time.sleep(0.3)
    return (bystanders._others_s(ours) - before) / (0.3 * 2)


def test_children_that_were_buried_are_their_parents() -> None:
    before = bystanders._ticks_of(os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert bystanders._ticks_of(os.getpid()) - before > 0.25 * os.sysconf("SC_CLK_TCK")
    assert bystanders._ticks_of(2**22 + 1) == 0


@pytest.fixture
def one_core() -> Iterator[int]:
    """All that is started in the test shares this core, but for the test."""
    before = os.sched_getaffinity(0)
    yield min(before)
    os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(core: int, code: str, niceness: int = 0) -> Iterator[int]:
    """A process on that core, by its number."""

    def begin() -> None:
        os.sched_setaffinity(0, {core})
        os.nice(niceness)

    process = subprocess.Popen([sys.executable, "-c", code], preexec_fn=begin)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def over_after(limit_s: float, pid: int) -> float:
    """Seconds after which a deadline of the process is over."""
    deadline, start = Deadline(limit_s), time.monotonic()
    while not deadline.is_over([pid]):
        time.sleep(0.01)
    return time.monotonic() - start


def test_what_a_process_waits_for_a_core_does_not_count(one_core: int) -> None:
    hogs = [running(one_core, BURN) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for hog in hogs:
            stack.enter_context(hog)
        starved = stack.enter_context(running(one_core, BURN, niceness=19))
        assert over_after(0.5, starved) == pytest.approx(PATIENCE * 0.5, abs=0.3)


def test_what_it_sleeps_counts(one_core: int) -> None:
    with running(one_core, BURN), running(one_core, "import time; time.sleep(60)") as asleep:
        time.sleep(0.5)  # until it sleeps
        assert over_after(0.3, asleep) < 0.6


def test_who_has_just_woken_up_has_not_waited_while_it_slept() -> None:
    with burning(1) as pids:
        waiting = bystanders._Waiting(pids[0], time.monotonic())
        waiting.ended_s(time.monotonic())
        os.kill(pids[0], signal.SIGSTOP)
        while waiting.goes_on_s(time.monotonic()):
            pass
        time.sleep(0.3)
        assert waiting.goes_on_s(time.monotonic()) == 0
        os.kill(pids[0], signal.SIGCONT)
        assert waiting.goes_on_s(time.monotonic()) < 0.2


def test_who_is_gone_waits_for_nothing() -> None:
    assert over_after(0.1, 2**22 + 1) < 0.4
