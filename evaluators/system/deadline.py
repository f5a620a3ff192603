"""Time limits for processes that do not count the time spent waiting for a core.

On a busy machine a process that is ready to run waits for a core, which is not its fault. A limit expires
once there was that much time in which no process waited. It also expires once the candidate's own processes
have used as much CPU time as all cores provide within the limit, because a candidate that spins with more
threads than cores makes its own threads wait for one another.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from evaluators.system import process_tree

PATIENCE = 5
"""The limit is extended to at most this multiple, however long the processes wait."""
MOST_THREADS = 64
"""Per process, the oldest are examined: thousands of threads must not slow the evaluator down."""


class Deadline:
    """Expires `limit_s` seconds from now, or up to PATIENCE times later if processes wait for a core."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._start = time.monotonic()
        self._waited_s = 0.0
        self._used_before_s: float | None = None
        self._known: dict[int, _Waiting] = {}

    @property
    def reason(self) -> str:
        """For messages: the limit, and how long the processes waited if that was long."""
        waits = f", {self._waited_s:.0f} s of waiting for a core not counted" if self._waited_s >= 1 else ""
        return f"within {self.limit_s:g} s{waits}"

    def is_over(self, own: Iterable[int], ours: Iterable[int] = ()) -> bool:
        """Whether the limit has expired. Ask every few milliseconds.

        Args:
            own: the candidate's processes; all their threads count.
            ours: the evaluator's processes that the candidate waits for; only their first threads count.
        """
        own = list(own)
        threads = [*(each for pid in own for each in process_tree.threads(pid)[:MOST_THREADS]), *ours]
        now = time.monotonic()
        used_s = process_tree.cpu_s(own)
        if self._used_before_s is None:
            self._used_before_s = used_s  # used before the limit began
        self._known = {each: self._known.get(each) or _Waiting(each, now) for each in threads}
        # The threads run concurrently: the longest of their waits since the last look counts.
        longest_s = max((each.more_s(now) for each in self._known.values()), default=0.0)
        self._waited_s = min(self._waited_s + longest_s, now - self._start)
        if now > self._start + min(self.limit_s + self._waited_s, PATIENCE * self.limit_s):
            return True
        return used_s - self._used_before_s > self.limit_s * (os.cpu_count() or 1)


class _Waiting:
    """How long one thread has been ready to run but waited for a core."""

    def __init__(self, thread: int, now: float) -> None:
        self._thread = thread
        self._ran, self._since, self._counted_s = "", now, 0.0
        self.more_s(now)  # waits before this moment do not count

    def more_s(self, now: float) -> float:
        """How long it has waited since the last call, in seconds."""
        before = self._counted_s
        with contextlib.suppress(OSError, ValueError, IndexError):
            ran, waited_ns, _ = Path(f"/proc/{self._thread}/schedstat").read_text().split()
            if ran != self._ran or process_tree.stat_fields(self._thread)[0] != "R":
                self._ran, self._since = ran, now
            # The system books a wait when it ends. A wait in progress began when the thread was last seen
            # asleep or running.
            self._counted_s = max(before, int(waited_ns) / 1e9 + now - self._since)
        return self._counted_s - before
