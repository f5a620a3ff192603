"""Memory, instruction pointers and run times of a stopped process, read from outside, where none of its code
takes part.

All of this needs the rights that `ptrace` needs; `can_peek` tests whether this machine grants them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evaluators.system import process_tree

STOPS_WITHIN_S = 1.0
"""A thread that waits for a core is stopped only once it has got one."""
PIECE = 2**30
TOLERANCE_MS, PAUSE_TOLERANCE_MS = 1.0, 0.02
"""Time that threads may have run while they were stopped, in total and additionally per pause: occasionally
the end of the stopping itself is booked late."""
GONE = -1
MIN_PAUSES = 3
"""Fewer pauses with activity are ignored. A kernel that works ahead does so in most pauses, and the system's
accounts are late in one or two."""


@dataclass(frozen=True)
class Region:
    """Memory that holds code. `path` is "" for memory without a file, and a name in brackets for the
    kernel's."""

    start: int
    end: int
    path: str


class Unreadable(Exception):
    """There is no memory at this address."""


def read_memory(pid: int, address: int, into: int, size: int) -> None:
    """Copies `size` bytes at an address of another process to our address `into`. Raises Unreadable,
    ProcessLookupError if the process is gone, or another OSError if it must not be inspected."""
    done = 0
    while done < size:
        piece = min(size - done, PIECE)
        ours, theirs = _Vector(into + done, piece), _Vector(address + done, piece)
        count = _libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        if count <= 0:
            number = ctypes.get_errno()
            if number in (errno.ESRCH, errno.EPERM, errno.ENOSYS):
                raise OSError(number, os.strerror(number))
            raise Unreadable(f"{size} bytes at {address:#x}: {os.strerror(number)}")
        done += count


def program_counters(pid: int) -> list[tuple[int, int]]:
    """Thread and instruction pointer of each thread of a stopped process that was computing, not in a system
    call."""
    found = []
    for thread in process_tree.threads(pid):
        state = _state(pid, thread)
        fields = _read(f"/proc/{pid}/task/{thread}/syscall").split()
        if state in ("T", "t") and fields[:1] == ["-1"]:
            found.append((thread, int(fields[2], 16)))
        elif state == "R":
            found.append((thread, 0))  # its instruction pointer is unknown
    return found


def code_regions(pid: int, thread: int | None = None) -> list[Region]:
    """The memory regions with code, by ascending address. Pass a living `thread` if the process's first
    thread may have ended, because then the process itself gives no answer. Raises OSError."""
    regions = []
    for line in Path(f"/proc/{pid}/task/{thread or pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if "x" in fields[1]:
            start, end = (int(each, 16) for each in fields[0].split("-"))
            path = fields[5] if len(fields) == 6 else ""
            regions.append(Region(start, end, path))
    return regions


def region_at(regions: list[Region], address: int) -> Region | None:
    """The region that contains an address."""
    index = bisect_right(regions, address, key=lambda region: region.start) - 1
    return regions[index] if index >= 0 and address < regions[index].end else None


def run_ns(pids: Iterable[int]) -> dict[int, int]:
    """How long each thread of stopped processes has run, in ns; GONE for a thread that ended instead of
    stopping. Waits until all have stopped.

    A thread counts as stopped a moment before it has left its core, and until then its last milliseconds are
    not booked. The kernel answers which system call a thread is in only once it has left
    (`wait_task_inactive`).
    """
    found = {}
    for pid in pids:
        for thread in process_tree.threads(pid):
            if _state(pid, thread) in ("Z", "X"):
                continue  # it has ended and may disappear at any moment
            _read(f"/proc/{pid}/task/{thread}/syscall")
            text = _read(f"/proc/{pid}/task/{thread}/schedstat")
            found[thread] = int(text.split()[0]) if text else GONE
    return found


def waited_ns(pids: Iterable[int]) -> int:
    """Total time that all threads of these processes were ready to run but waited for a core, in ns."""
    places = ((pid, thread) for pid in pids for thread in process_tree.threads(pid))
    texts = (_read(f"/proc/{pid}/task/{thread}/schedstat") for pid, thread in places)
    return sum(int(text.split()[1]) for text in texts if text)


def settled_ns(pids: Collection[int]) -> dict[int, int]:
    """`run_ns`, once the threads that were about to end have ended."""
    deadline = time.monotonic() + STOPS_WITHIN_S
    while GONE in (found := run_ns(pids)).values() and time.monotonic() < deadline:
        pass
    return found


class StopCheck:
    """Detects processes whose threads run while they are supposed to be stopped, over many pauses."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._moved_ms, self._pauses, self._moving, self._changed = 0.0, 0, 0, 0

    def begin(self, ran_ns: Mapping[int, int]) -> None:
        """A pause begins, with the result of `settled_ns`."""
        self._before = dict(ran_ns)

    def violation(self, ran_ns: Mapping[int, int]) -> str | None:
        """A pause ends, with the result of `run_ns`. Returns the reason to reject the process, or None."""
        moved_ms = sum(max(ran_ns[each] - self._before.get(each, 0), 0) for each in ran_ns) / 1e6
        self._moved_ms += moved_ms
        self._pauses += 1
        self._moving += moved_ms > PAUSE_TOLERANCE_MS
        # Stopped threads neither start nor end others. How long threads that are gone have run is unknown.
        self._changed += ran_ns.keys() != self._before.keys() or GONE in ran_ns.values()
        allowed_ms = TOLERANCE_MS + PAUSE_TOLERANCE_MS * self._pauses
        if self._moving >= MIN_PAUSES and self._moved_ms > allowed_ms:
            what = f"it ran for {self._moved_ms:.3g} ms in {self._pauses}"
        elif self._changed >= MIN_PAUSES:
            what = f"threads came or went in {self._changed}"
        else:
            return None
        return f"{what} pauses in which it had to stand still"


@cache
def can_peek() -> bool:
    """Whether this machine lets a process inspect its own child; tried once, with a child that waits."""
    value = ctypes.c_uint64(0)
    pid = os.fork()
    if pid == 0:
        while True:
            time.sleep(60)
    try:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        read_memory(pid, ctypes.addressof(value), ctypes.addressof(value), 8)
        return bool(_read(f"/proc/{pid}/task/{pid}/syscall"))
    except (OSError, Unreadable):
        return False
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _state(pid: int, thread: int) -> str:
    """A thread's state once it has stopped: T, t or Z; "" if it is gone; another letter if it does not stop.
    A thread that sleeps in a system call has to wake up first."""
    deadline = time.monotonic() + STOPS_WITHIN_S
    while True:
        state = _read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].lstrip()[:1]
        if state in "TtZX" or time.monotonic() > deadline:
            return state


def _read(path: str) -> str:
    try:
        return process_tree.read_proc(path)
    except OSError:
        return ""


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = [
    ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong
]  # fmt: skip
