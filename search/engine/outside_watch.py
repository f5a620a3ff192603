"""Notices when only others can advance a search: people who answer a mailbox, or the workers of a queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from search.engine.session import Session
from search.records.outside import Awaited

LOOK_EVERY_S = 0.5
"""Longer than the pauses between two polls of a mailbox, so that an answer that is there is taken first."""
BLOCKED = "blocked"
"""The reason of a run that ended because only others can advance it."""


class OutsideWatch:
    """Watches one search. While it waits for nothing but verdicts, its clock stands still: `budget.seconds`
    limits the work, not the wait for a device.

    Args:
        session: The search.
        stops: Whether to stop the search when only others can advance it.
        look_every_s: Seconds between two looks; two in a row must agree.
    """

    def __init__(self, session: Session, *, stops: bool, look_every_s: float = LOOK_EVERY_S) -> None:
        self._session, self._stops, self._look_every_s = session, stops, look_every_s
        self.blocked_on: Awaited | None = None
        """What the search waited for when it was stopped."""

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches during the block."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            self._session.budget.stand_still(False)

    async def _watch(self) -> None:
        before: Awaited | None = None
        while self.blocked_on is None:
            await asyncio.sleep(self._look_every_s)
            now = self._session.awaited()
            self._session.budget.stand_still(now is not None and not now.answers)
            if self._stops and now is not None and now == before:
                self.blocked_on = now
                self._session.work.request_stop(BLOCKED, at_once=True)
            before = now
