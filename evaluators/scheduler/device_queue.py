"""A queue for devices, each of which is lent to one waiter at a time."""

from __future__ import annotations

import asyncio
import itertools
from bisect import insort
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from evaluators.device.open_problems import MOST_OPEN
from evaluators.scheduler.device_use import Demand

PLACES = itertools.count()
"""Places in the queues, in the order of arrival."""
PATIENCE = 8
"""How often later waiters may be served before the first in the queue, so that no problem starves another."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waiter:
    place: int
    problem: str
    avoid: frozenset[int]
    device: asyncio.Future[int]


class DeviceQueue:
    """Lends devices. A device that has a waiter's problem open goes to that waiter, because opening a problem
    takes seconds; otherwise to the one with the lowest place. A kernel that is judged on several cases, one
    after another, keeps its place: the first kernels have their verdicts early, and each problem's cases are
    opened once for all its kernels that wait."""

    def __init__(self, count: int) -> None:
        self.in_use = set(range(count))
        """The devices that are not set aside."""
        self.demand = Demand()
        """Counts the kernels that are on their way to a device."""
        self.idle_s = dict.fromkeys(range(count), 0.0)
        """For how long each device was idle before its present lease although kernels were on their way."""
        self._demand_at = dict.fromkeys(range(count), 0.0)
        """The demand's seconds when each device was given back."""
        self._idle = list(range(count))
        self._open: dict[int, deque[str]] = {}
        """Each device's most recent problems, which may be open there."""
        self._line: list[_Waiter] = []
        self._passed_over = 0

    @asynccontextmanager
    async def lease(
        self, problem: str, avoid: Collection[int] = (), *, place: int | None = None
    ) -> AsyncIterator[int]:
        """A device for the duration of the block, none of those to `avoid` unless there are no others.
        `place` is one of `PLACES`; None for the next."""
        device = await self._take(problem, frozenset(avoid), next(PLACES) if place is None else place)
        try:
            yield device
        except Exception:
            self._open.pop(device, None)  # a new worker will have to open its problem
            raise
        finally:
            self._give(device)

    def set_aside(self, device: int) -> None:
        """Lends the device no more; a current lease continues to its end."""
        self.in_use.discard(device)
        self._idle = [each for each in self._idle if each != device]
        self._serve()

    def take_back(self, device: int) -> None:
        """Lends a device again that was set aside."""
        if device not in self.in_use:
            self.in_use.add(device)
            self._give(device)

    async def _take(self, problem: str, avoid: frozenset[int], place: int) -> int:
        future = asyncio.get_running_loop().create_future()
        waiter = _Waiter(place=place, problem=problem, avoid=avoid, device=future)
        insort(self._line, waiter, key=lambda each: each.place)
        self._serve()
        try:
            return await waiter.device
        except asyncio.CancelledError:
            if waiter in self._line:
                self._line.remove(waiter)
            elif not waiter.device.cancelled():  # served and cancelled in the same turn
                self._give(waiter.device.result())
            raise

    def _give(self, device: int) -> None:
        self._demand_at[device] = self.demand.seconds()
        if device in self.in_use:
            self._idle.append(device)
        self._serve()

    def _serve(self) -> None:
        self._line = [waiter for waiter in self._line if not waiter.device.done()]
        while pairs := [(w, d) for w in self._line for d in self._idle if self._may_have(w, d)]:
            in_patience = self._passed_over < PATIENCE
            waiter, device = min(pairs, key=self._cost_of) if in_patience else pairs[0]
            self._passed_over = 0 if waiter is self._line[0] else self._passed_over + 1
            self._line.remove(waiter)
            self._idle.remove(device)
            lately = self._open.setdefault(device, deque(maxlen=MOST_OPEN))
            if waiter.problem in lately:
                lately.remove(waiter.problem)
            lately.append(waiter.problem)
            self.idle_s[device] = self.demand.seconds() - self._demand_at[device]
            waiter.device.set_result(device)

    def _cost_of(self, pair: tuple[_Waiter, int]) -> int:
        """Cost of a device for a waiter: its problem is in use there (0), may still be open (1), or must be
        opened (2)."""
        lately = self._open.get(pair[1])
        if lately is None or pair[0].problem not in lately:
            return 2
        return int(lately[-1] != pair[0].problem)

    def _may_have(self, waiter: _Waiter, device: int) -> bool:
        return device not in waiter.avoid or self.in_use <= waiter.avoid
