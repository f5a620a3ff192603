"""The line of requests that wait for a reward server's devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from evaluators.queue.turns import Turns


class LineIsFull(Exception):
    """There is no room in the line. `retry_after_s` is when there probably will be."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(
            f"{waiting} requests are waiting, which is the limit; retry in {retry_after_s:.0f} s"
        )
        self.retry_after_s = retry_after_s


@dataclass(eq=False, kw_only=True)
class _Waiter:
    client: str
    priority: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Line:
    """Lets `at_once` requests work at a time. Of those that wait, the highest priority comes first; within
    it, clients take turns, and each client's requests are served in order.

    Args:
        at_once: Requests that may work at a time.
        longest: Requests that may wait.
    """

    def __init__(self, at_once: int, longest: int) -> None:
        self._free, self._at_once, self._longest = at_once, at_once, longest
        self._waiting: list[_Waiter] = []
        self._turns: dict[int, Turns] = {}
        self._work_s = 1.0
        """The mean duration of recent work."""

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    @property
    def working(self) -> int:
        """The number of requests that work."""
        return self._at_once - self._free

    def require_room(self, requests: int) -> None:
        """Raises LineIsFull if not all of these further requests could wait."""
        if self.waiting + requests > self._longest + self._free:
            in_front = self.waiting + self.working
            raise LineIsFull(self.waiting, max(1.0, in_front * self._work_s / self._at_once))

    @asynccontextmanager
    async def turn(self, client: str, priority: int = 0) -> AsyncIterator[None]:
        """The block is the request's work. Raises LineIsFull."""
        self.require_room(1)
        waiter = _Waiter(client=client, priority=priority)
        self._waiting.append(waiter)
        self._serve()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:  # served and cancelled in the same turn of the loop
                self._leave()
            raise
        start = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._work_s += 0.1 * (asyncio.get_running_loop().time() - start - self._work_s)
            self._leave()

    def _leave(self) -> None:
        self._free += 1
        self._serve()

    def _serve(self) -> None:
        while self._free and self._waiting:
            priority = max(each.priority for each in self._waiting)
            first = [each for each in self._waiting if each.priority == priority]
            turns = self._turns.setdefault(priority, Turns())
            client = turns.next({each.client for each in first})
            turns.charge(client, 1.0)
            chosen = next(each for each in first if each.client == client)
            self._waiting.remove(chosen)
            self._free -= 1
            chosen.turn.set_result(None)
