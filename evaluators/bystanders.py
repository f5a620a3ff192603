"""What other processes do to ours: whether they keep the cores busy, so that what is measured proves nothing,
and how long ours have waited for a core, which is no fault of theirs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from evaluators.process_tree import stat_fields

BUSY_SHARE = 0.3
"""Of all cores, that others have had."""
USER, NICE, SYSTEM, INTERRUPTS, STEAL = 0, 1, 2, slice(5, 7), 7
"""Places of the first line of `/proc/stat`."""
PATIENCE, STARVED_SHARE = 3, 0.2
"""So many times its limit may a process take that others keep from the cores; who has waited for this part of
its time is starved."""


class Bystanders:
    """Everybody but some processes, from now on."""

    def __init__(self, ours: Iterable[int]) -> None:
        self._since, self._others_s = time.monotonic(), _others_s(ours)

    def busy(self, ours: Iterable[int]) -> bool:
        """Whether they have had more than their share of the cores; `ours`: who of us is there now."""
        seconds = (time.monotonic() - self._since) * (os.cpu_count() or 1)
        return _others_s(ours) - self._others_s > BUSY_SHARE * seconds


class Deadline:
    """`limit_s` seconds from now on, in which the time does not count that processes have waited for a core:
    who takes all cores must not bring others to their deadlines. Up to PATIENCE times the limit."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._start = time.monotonic()
        self._waited_s = self._going_on_s = 0.0
        self._known: dict[int, _Waiting] = {}

    def is_over(self, pids: Iterable[int]) -> bool:
        """Whether it is, for these processes; to be asked every few milliseconds."""
        now = time.monotonic()
        self._known = {pid: self._known.get(pid) or _Waiting(pid, now) for pid in pids}
        # They run side by side: of their waits the longest counts.
        self._waited_s += max((each.ended_s(now) for each in self._known.values()), default=0.0)
        self._going_on_s = max((each.goes_on_s(now) for each in self._known.values()), default=0.0)
        allowed_s = min(self.limit_s + self._waited_s + self._going_on_s, PATIENCE * self.limit_s)
        return now > self._start + allowed_s

    @property
    def starved(self) -> bool:
        """Whether they have waited for a core for much of the time so far."""
        return self._waited_s + self._going_on_s > STARVED_SHARE * (time.monotonic() - self._start)


class _Waiting:
    """The waits of a process's first thread, ready to run, for a core."""

    def __init__(self, pid: int, now: float) -> None:
        self._pid = pid
        self._ran, self._waited_s, self._since = "", 0.0, now

    def ended_s(self, now: float) -> float:
        """How long those were that have ended since the last call: the kernel does not tell before."""
        with contextlib.suppress(OSError, ValueError):
            ran, waited_ns, _ = Path(f"/proc/{self._pid}/schedstat").read_text().split()
            if ran != self._ran:
                self._ran, self._since = ran, now
            before, self._waited_s = self._waited_s, int(waited_ns) / 1e9
            return self._waited_s - before
        return 0.0

    def goes_on_s(self, now: float) -> float:
        """How long it has been waiting now: since it was last seen asleep, or had run."""
        with contextlib.suppress(OSError, IndexError):
            if stat_fields(self._pid)[0] == "R":
                return now - self._since
        self._since = now
        return 0.0


def _others_s(ours: Iterable[int]) -> float:
    """CPU seconds of all processes there ever were but these, and the children that they have buried."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy = ticks[USER] + ticks[NICE] + ticks[SYSTEM] + sum(ticks[INTERRUPTS]) + ticks[STEAL]
        return (busy - sum(_ticks_of(pid) for pid in set(ours))) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _ticks_of(pid: int) -> int:
    """Its own, user's and system's, and those of the children that it has buried."""
    with contextlib.suppress(OSError, ValueError):
        return sum(int(field) for field in stat_fields(pid)[11:15])
    return 0
