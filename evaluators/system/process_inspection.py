"""What a stopped process holds and where it was, read from outside: no code of its own takes part.

All of it needs the rights that `ptrace` asks for; `can_peek` tells whether this machine grants them.
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
"""A thread that waits for a core learns that it is stopped when it has got one."""
PIECE = 2**30
STILL_MS, STILL_PAUSE_MS = 1.0, 0.02
"""What threads may have run while they were stopped, in all and for each pause besides: now and then the end
of the stopping itself is counted late."""
GONE = -1
RESTLESS_PAUSES = 3
"""In so many at least somebody must have run: who works ahead does it in most, a machine's accounts are late
in one or two."""


@dataclass(frozen=True)
class Region:
    """Memory that holds code: `path` is "" for memory without a file, a name in brackets for the kernel's."""

    start: int
    end: int
    path: str


class Unreadable(Exception):
    """There is no such memory."""


def read_memory(pid: int, address: int, into: int, size: int) -> None:
    """Copies `size` bytes at an address of another process to the address `into` of ours. Raises Unreadable,
    ProcessLookupError when the process is gone, another OSError where it must not be looked into."""
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
    """Thread and place of each thread of a stopped process that was computing, and not in a system call."""
    found = []
    for thread in _threads(pid):
        state = _state(pid, thread)
        fields = _read(f"/proc/{pid}/task/{thread}/syscall").split()
        if state in ("T", "t") and fields[:1] == ["-1"]:
            found.append((thread, int(fields[2], 16)))
        elif state == "R":
            found.append((thread, 0))  # nobody knows what it does
    return found


def code_regions(pid: int, thread: int | None = None) -> list[Region]:
    """Where the code of a process lies, in the order of addresses; by one of its threads, where the first may
    have ended, of which there is no answer then. Raises OSError."""
    regions = []
    for line in Path(f"/proc/{pid}/task/{thread or pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if "x" in fields[1]:
            start, end = (int(each, 16) for each in fields[0].split("-"))
            path = fields[5] if len(fields) == 6 else ""
            regions.append(Region(start, end, path))
    return regions


def region_at(regions: list[Region], address: int) -> Region | None:
    """The region that an address lies in."""
    index = bisect_right(regions, address, key=lambda region: region.start) - 1
    return regions[index] if index >= 0 and address < regions[index].end else None


def run_ns(pids: Iterable[int]) -> dict[int, int]:
    """How long each thread of stopped processes has run, GONE for one that ended instead of standing still;
    waits until they all do.

    A thread counts as stopped a moment before it has left its core, and until then its last milliseconds are
    not booked. The kernel's answer to what system call a thread is in waits for it to have left
    (`wait_task_inactive`).
    """
    found = {}
    for pid in pids:
        for thread in _threads(pid):
            if _state(pid, thread) in ("Z", "X"):
                continue  # it runs no more, and may be gone at any moment
            _read(f"/proc/{pid}/task/{thread}/syscall")
            text = _read(f"/proc/{pid}/task/{thread}/schedstat")
            found[thread] = int(text.split()[0]) if text else GONE
    return found


def waited_ns(pids: Iterable[int]) -> int:
    """How long all threads of these processes have waited for a core, ready to run, added up."""
    texts = (_read(f"/proc/{pid}/task/{thread}/schedstat") for pid in pids for thread in _threads(pid))
    return sum(int(text.split()[1]) for text in texts if text)


def settled_ns(pids: Collection[int]) -> dict[int, int]:
    """`run_ns` once whoever was about to end has ended."""
    deadline = time.monotonic() + STOPS_WITHIN_S
    while GONE in (found := run_ns(pids)).values() and time.monotonic() < deadline:
        pass
    return found


class StopCheck:
    """Whether a process's threads stand still while they are stopped, pause after pause."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._unasked_ms, self._pauses, self._restless, self._others = 0.0, 0, 0, 0

    def begin(self, ran_ns: Mapping[int, int]) -> None:
        """A pause begins, with what `settled_ns` says."""
        self._before = dict(ran_ns)

    def broken(self, ran_ns: Mapping[int, int]) -> str | None:
        """Why it is to be rejected when a pause ends with what `run_ns` says, or None."""
        unasked_ms = sum(max(ran_ns[each] - self._before.get(each, 0), 0) for each in ran_ns) / 1e6
        self._unasked_ms += unasked_ms
        self._pauses += 1
        self._restless += unasked_ms > STILL_PAUSE_MS
        # Who stands still neither starts threads nor ends them; what those ran that are gone nobody knows.
        self._others += ran_ns.keys() != self._before.keys() or GONE in ran_ns.values()
        allowed_ms = STILL_MS + STILL_PAUSE_MS * self._pauses
        if self._restless >= RESTLESS_PAUSES and self._unasked_ms > allowed_ms:
            what = f"it ran for {self._unasked_ms:.3g} ms in {self._pauses}"
        elif self._others >= RESTLESS_PAUSES:
            what = f"threads came or went in {self._others}"
        else:
            return None
        return f"{what} pauses in which it was to stand still"


@cache
def can_peek() -> bool:
    """Whether this machine lets a process look into its own child; tried once, with one that waits."""
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
    """A thread's state once it has stopped: T, t, Z, or "" for one that is gone; another letter for one that
    does not stop. Who slept in a system call wakes up for that."""
    deadline = time.monotonic() + STOPS_WITHIN_S
    while True:
        state = _read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].lstrip()[:1]
        if state in "TtZX" or time.monotonic() > deadline:
            return state


def _threads(pid: int) -> list[int]:
    try:
        return [int(each) for each in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


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
