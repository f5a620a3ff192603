"""Trees of real processes are found, stopped and ended."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evaluators.system import process_tree
from tests.evaluators.conftest import gone

TREE = "import os, subprocess, sys, time\n{body}\nos.write(1, b'up\\n')\ntime.sleep(600)"


def test_a_tree_is_found_and_killed() -> None:
    leaf = TREE.format(body="")
    middle = TREE.format(body=f"for _ in range(3): subprocess.Popen([sys.executable, '-c', {leaf!r}]).stdout")
    with subprocess.Popen([sys.executable, "-c", middle], stdout=subprocess.PIPE) as root:
        assert root.stdout is not None
        try:
            heard = [root.stdout.readline() for _ in range(4)]
            below = process_tree.descendants(root.pid)
            ours = process_tree.descendants(os.getpid())
        finally:
            process_tree.kill_tree(root.pid)
        rest = root.stdout.read()
    assert heard == [b"up\n"] * 4
    assert len(below) == 3
    assert {root.pid, *below} <= set(ours)
    assert rest == b"", "all of them have let go of the pipe"
    assert root.returncode == -signal.SIGKILL


def test_killing_a_tree_that_is_gone_is_no_error() -> None:
    with subprocess.Popen(["true"]) as done:
        done.wait()
    process_tree.kill_tree(done.pid)
    assert process_tree.descendants(done.pid) == []
    assert process_tree.memory_bytes([done.pid]) == 0


@pytest.mark.slow
def test_memory_includes_touched_pages_and_open_shared_memory() -> None:
    before = process_tree.memory_bytes([os.getpid()])
    # Not memory that malloc has kept.
    held = mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.write(bytes(len(held)))
    touched = process_tree.memory_bytes([os.getpid()]) - before
    assert 60 * 2**20 < touched < 80 * 2**20
    fd = os.memfd_create("held")
    os.write(fd, held)
    assert process_tree.memory_bytes([os.getpid()]) - before > touched + 60 * 2**20
    os.close(fd)
    assert process_tree.memory_bytes([os.getpid()], shared_with_us=2**40) > 0


STARVED = """
import hashlib, os, sys, threading
def spin(core):
    os.sched_setaffinity(0, {core})
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**8)  # does not hold Python's lock
threading.Thread(target=spin, args=[int(sys.argv[2])], daemon=True).start()
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("ready", flush=True)
spin(int(sys.argv[1]))
"""

BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("ready", flush=True)
while True:
    pass
"""


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_stop_although_the_first_one_gets_no_core() -> None:
    """On a busy machine it would relay the signal much later."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    commands = [[STARVED, str(first), str(second)], [BUSY, str(first)]]
    started = []
    try:
        for command in commands:
            process = subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.PIPE)
            started.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        pid = started[0].pid
        (spinning,) = (int(each) for each in os.listdir(f"/proc/{pid}/task") if int(each) != pid)
        process_tree.stop_tree(pid)
        stat = Path(f"/proc/{pid}/task/{spinning}/stat")
        assert gone(lambda: [] if ") T " in stat.read_text() else ["it goes on"], within_s=0.4)
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_cpu_time_is_that_of_a_process_and_of_its_children_that_ended() -> None:
    before = process_tree.cpu_s([os.getpid()])
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert process_tree.cpu_s([os.getpid(), os.getpid()]) - before == pytest.approx(0.3, abs=0.2)
    assert process_tree.cpu_s([2**22 + 1]) == 0
