"""A limit on the time that processes have to themselves: who waits for a core is not late by that.

On a busy machine a process that is ready to run waits for a core, which is no fault of its own. So a limit is
over when there was so much time in which none of the processes waited, or when the candidate's own have had
as much CPU time as all cores have to give within the limit: who spins with more threads than there are cores
has its threads wait for one another.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from evaluators.system import process_tree

PATIENCE = 5
"""So many times the limit at most, however long they wait."""
MOST_THREADS = 64
"""Of each process, the oldest: who starts thousands must not keep the evaluator busy with looking at them."""


class Deadline:
    """`limit_s` seconds from now on, up to PATIENCE times as many where processes wait for a core."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._start = time.monotonic()
        self._waited_s = 0.0
        self._used_before_s: float | None = None
        self._known: dict[int, _Waiting] = {}

    @property
    def reason(self) -> str:
        """What is to be said where it is over: the limit, and how long they waited if that matters."""
        waits = f", {self._waited_s:.0f} s of waiting for a core not counted" if self._waited_s >= 1 else ""
        return f"within {self.limit_s:g} s{waits}"

    def is_over(self, own: Iterable[int], ours: Iterable[int] = ()) -> bool:
        """Whether it is; to be asked every few milliseconds. `own`: the candidate's processes, of which the
        threads count; `ours`: those of the evaluator that it has to wait for, of which the first ones do."""
        own = list(own)
        threads = [*(each for pid in own for each in process_tree.threads(pid)[:MOST_THREADS]), *ours]
        now = time.monotonic()
        used_s = process_tree.cpu_s(own)
        if self._used_before_s is None:
            self._used_before_s = used_s  # before the limit began
        self._known = {each: self._known.get(each) or _Waiting(each, now) for each in threads}
        # They run side by side: of their waits since the last look the longest counts.
        longest_s = max((each.more_s(now) for each in self._known.values()), default=0.0)
        self._waited_s = min(self._waited_s + longest_s, now - self._start)
        if now > self._start + min(self.limit_s + self._waited_s, PATIENCE * self.limit_s):
            return True
        return used_s - self._used_before_s > self.limit_s * (os.cpu_count() or 1)


class _Waiting:
    """The waits of a thread, ready to run, for a core."""

    def __init__(self, thread: int, now: float) -> None:
        self._thread = thread
        self._ran, self._since, self._counted_s = "", now, 0.0
        self.more_s(now)  # those before this moment are not the deadline's

    def more_s(self, now: float) -> float:
        """How long it has waited since the last call."""
        before = self._counted_s
        with contextlib.suppress(OSError, ValueError, IndexError):
            ran, waited_ns, _ = Path(f"/proc/{self._thread}/schedstat").read_text().split()
            if ran != self._ran or process_tree.stat_fields(self._thread)[0] != "R":
                self._ran, self._since = ran, now
            # The system counts a wait when it has ended; one that goes on began when the thread was last seen
            # asleep, or had run.
            self._counted_s = max(before, int(waited_ns) / 1e9 + now - self._since)
        return self._counted_s - before
