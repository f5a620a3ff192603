"""Processes and all that they have started, seen from above: found, stopped, ended, and measured."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
SYS_TGKILL = 234 if platform.machine() == "x86_64" else 131

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """SIGKILL for this process when its parent dies, however that happens."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def become_subreaper() -> None:
    """Orphans of this process's descendants become its children, so that it can find and end them."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def rename(name: str) -> None:
    """Gives this process, and whom it forks, a name for `ps` and `top`, of 15 characters at most."""
    _libc.prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, as far as `/proc` shows them."""
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children(todo.pop())
        found += below
        todo += below
    return found


def children(pid: int) -> list[int]:
    """The processes that it has started and that are there, as far as `/proc` shows them."""
    if not _has_children_files():
        return [each for each, parent in _parents().items() if parent == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        found += children_of_thread(int(thread), pid)
    return found


def children_of_thread(thread: int, pid: int | None = None) -> list[int]:
    """The processes that this thread of the process (None: of this one) has started and that are there; all
    of the process's where the system does not tell which thread started one."""
    pid = os.getpid() if pid is None else pid
    if not _has_children_files():
        return children(pid)
    try:
        return [int(each) for each in read_proc(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return []


def read_proc(path: str) -> str:
    """A file of `/proc`, in a third of the CPU time that `open` takes: timing a call on a CPU reads eighty.
    Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while part := os.read(fd, 2**16):
            text += part
    finally:
        os.close(fd)
    return text.decode(errors="replace")


def threads(pid: int) -> list[int]:
    """The threads of a process, in order of their numbers; none of one that is gone."""
    with contextlib.suppress(OSError):
        return sorted(int(thread) for thread in os.listdir(f"/proc/{pid}/task"))
    return []


def stop_tree(pid: int) -> set[int]:
    """Stops `pid` and everything below it, and what they started meanwhile; returns who was reached. Until
    they are woken up they do not change, but for who is killed."""
    reached: set[int] = set()
    for _ in range(100):
        found = {pid, *descendants(pid)} - reached
        if not found:
            break
        stop_all(found)
        reached |= found
    return reached


def stop_all(pids: Iterable[int]) -> None:
    """Stops each that is still there, by each of its threads: told to the process, all of them would go on
    until the one thread that the system picks has got a core."""
    for pid in pids:
        for thread in threads(pid):
            _libc.syscall(SYS_TGKILL, pid, thread, signal.SIGSTOP)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Sends a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def spread_threads(pids: Iterable[int]) -> list[int]:
    """Gives each thread of each of these processes a core of its own as far as there are enough.

    Stopped threads would otherwise wake up on one core and wait for one another's time slice (4 ms) while
    they spin. Returns the processes with several threads, whose first threads `allow_all_cores` is to set
    free once they run: what they start is not to stay on their core.
    """
    cores = sorted(os.sched_getaffinity(0))
    leaders = []
    for each in pids:
        with contextlib.suppress(OSError):
            if len(found := threads(each)) > 1:
                leaders.append(each)
                for place, thread in enumerate(found):
                    os.sched_setaffinity(thread, {cores[place % len(cores)]})
    return leaders


def allow_all_cores(pids: Iterable[int]) -> None:
    """Lets the first threads of these processes run wherever this process may."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, os.sched_getaffinity(0))


def kill_tree(pid: int) -> None:
    """SIGKILL for `pid` and everything below it, repeated until nothing new appears."""
    for _ in range(100):
        below = descendants(pid)
        for each in (pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if not below:
            return


def kill_descendants() -> None:
    """SIGKILL for everything below this process: its threads that wait for those processes, or for a
    deadline of theirs, come to their end now."""
    signal_all(descendants(os.getpid()), signal.SIGKILL)


def memory_bytes(pids: Iterable[int], shared_with_us: int = 0) -> int:
    """Memory that processes hold together: their anonymous pages, and shared memory, mapped or only open, but
    for `shared_with_us` bytes in each."""
    private = mapped = 0
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError, KeyError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            private += int(fields["RssAnon"].split()[0]) * 1024
            mapped += max(0, int(fields["RssShmem"].split()[0]) * 1024 - shared_with_us)
            for entry in os.scandir(f"/proc/{pid}/fd"):
                if os.readlink(entry.path).startswith("/memfd:"):
                    about = os.stat(entry.path)
                    files[about.st_dev, about.st_ino] = about.st_blocks * 512
    return private + max(mapped, sum(files.values()))


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that processes have used together, and the children that they have buried."""
    ticks = 0
    for pid in set(pids):
        with contextlib.suppress(OSError, ValueError):
            ticks += sum(int(field) for field in stat_fields(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def stat_fields(pid: int) -> list[str]:
    """What `/proc` tells of a process (or, by its number, of a thread) in a line, from its state on: the name
    before may hold anything. Raises OSError."""
    return read_proc(f"/proc/{pid}/stat").rpartition(")")[2].split()


def prctl(option: int, value: int) -> None:
    """The system's call of that name. Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


@cache
def _has_children_files() -> bool:
    return os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(entry)] = int(stat_fields(int(entry))[1])
    return parents
