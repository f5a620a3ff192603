"""What can be seen of another process from outside, while it is stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from evaluators.system import process_inspection

pytestmark = pytest.mark.skipif(
    not process_inspection.can_peek(), reason="this machine lets nobody look into a child"
)
CHILD = """
import ctypes, sys, threading, time
data = ctypes.create_string_buffer(b"what it holds", 4096)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(ctypes.addressof(data), flush=True)
while True:
    pass
"""


@pytest.fixture
def child() -> Iterator[tuple[int, int]]:
    """A stopped process with a thread that computes and one that sleeps, and the address of some bytes."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = int(process.stdout.readline())
        time.sleep(0.1)  # it may not have finished writing that when we read it
        os.kill(process.pid, signal.SIGSTOP)
        yield process.pid, address
        process.kill()


def test_memory_is_read_as_it_is(child: tuple[int, int]) -> None:
    pid, address = child
    ours = ctypes.create_string_buffer(13)
    process_inspection.read_memory(pid, address, ctypes.addressof(ours), 13)
    assert ours.raw == b"what it holds"
    for nowhere in (0, 8, 2**47):
        with pytest.raises(process_inspection.Unreadable, match="13 bytes"):
            process_inspection.read_memory(pid, nowhere, ctypes.addressof(ours), 13)


@pytest.mark.slow
def test_a_process_that_is_gone_is_reported(child: tuple[int, int]) -> None:
    pid, address = child
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises((ProcessLookupError, process_inspection.Unreadable)):
        process_inspection.read_memory(pid, address, ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    assert process_inspection.program_counters(pid) == []
    assert process_inspection.run_ns([2**22 + 1]) == {}


def test_only_computing_threads_have_an_address_in_a_file(child: tuple[int, int]) -> None:
    pid, _ = child
    ((thread, address),) = process_inspection.program_counters(pid)
    assert thread == pid
    regions = process_inspection.code_regions(pid, thread)
    found = process_inspection.region_at(regions, address)
    assert found is not None and "python" in found.path
    assert process_inspection.region_at(regions, 0) is None
    assert process_inspection.region_at([], address) is None


@pytest.mark.slow
def test_threads_that_share_a_core_wait_for_it_and_sleeping_ones_do_not() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    sources = {"one": spin, "other": spin, "sleeper": "import time; time.sleep(600)"}
    started = {
        name: subprocess.Popen([sys.executable, "-c", each], start_new_session=True)
        for name, each in sources.items()
    }
    try:
        time.sleep(1.0)
        before = {name: process_inspection.waited_ns([each.pid]) for name, each in started.items()}
        time.sleep(1.0)
        waited = {
            name: process_inspection.waited_ns([each.pid]) - before[name] for name, each in started.items()
        }
        assert waited["one"] + waited["other"] > 0.5e9
        assert waited["sleeper"] < 0.01e9
        pids = [each.pid for each in started.values()]
        assert process_inspection.waited_ns(pids) >= sum(waited.values()), "added up"
    finally:
        for each in started.values():
            each.kill()
            each.wait()
    assert process_inspection.waited_ns(pids) == 0, "they are gone"


@pytest.mark.slow
def test_a_stopped_process_runs_no_time(child: tuple[int, int]) -> None:
    pid, _ = child
    before = process_inspection.run_ns([pid])
    assert len(before) == 2
    time.sleep(0.05)
    assert process_inspection.run_ns([pid]) == before
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.1)
    os.kill(pid, signal.SIGSTOP)
    assert process_inspection.run_ns([pid])[pid] > before[pid]


@pytest.mark.parametrize(
    ("runs_ms", "restless_at"),
    [
        ([5.0, 0.0, 0.0, 5.0, 0.0, 0.0], None),  # late accounts: twice, by any amount
        ([0.3] * 3, None),  # three times, but less than a millisecond in total
        ([0.3] * 6, 4),
        ([0.0, 8.0, 0.0, 2.0, 2.0], 5),
        ([0.019] * 400, None),  # a little in every pause is what stopping costs
        ([0.5] + [0.0] * 60 + [0.5] + [0.0] * 60 + [5.0], 123),
    ],
)
def test_a_thread_that_runs_in_three_pauses_violates_the_stop(
    runs_ms: list[float], restless_at: int | None
) -> None:
    stop_check, ran_ns = process_inspection.StopCheck(), 10**9
    verdicts = []
    for ran_ms in runs_ms:
        stop_check.begin({7: ran_ns, 8: 5})
        ran_ns += int(ran_ms * 1e6)
        verdicts.append(stop_check.violation({7: ran_ns, 8: 5}))
        ran_ns += 10**7  # what it was ordered to do
    first = next((n for n, reason in enumerate(verdicts, 1) if reason), None)
    assert first == restless_at, verdicts


def test_a_thread_that_was_not_there_when_the_pause_began_has_run_all_of_its_time() -> None:
    stop_check = process_inspection.StopCheck()
    for _ in range(2):
        stop_check.begin({7: 5})
        assert stop_check.violation({7: 5, 9: 10**6}) is None
    stop_check.begin({7: 5})
    assert (
        stop_check.violation({7: 5, 9: 10**6}) == "it ran for 3 ms in 3 pauses in which it had to stand still"
    )


def test_threads_that_come_and_go_in_pauses_violate_the_stop() -> None:
    """How long they ran is unknown, because they are gone."""
    stop_check = process_inspection.StopCheck()
    verdicts = []
    for thread in range(3):
        stop_check.begin({7: 5, thread: 10**6})
        verdicts.append(stop_check.violation({7: 5, thread + 1: 0}))
    assert verdicts == [None, None, "threads came or went in 3 pauses in which it had to stand still"]


def test_a_thread_that_took_anothers_number_hides_nothing() -> None:
    stop_check = process_inspection.StopCheck()
    for _ in range(3):
        stop_check.begin({7: 0, 8: 10**9})
        found = stop_check.violation({7: 10**7, 8: 0})
    assert found == "it ran for 30 ms in 3 pauses in which it had to stand still"
