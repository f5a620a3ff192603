"""Keeps a folder's report up to date while searches run there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from search.app.report_packages import missing_packages

logger = logging.getLogger(__name__)

EVERY_S = 60.0
POLL_S = 5.0


class FreshPage:
    """A page that is rewritten after changes, at most once per EVERY_S. It is written in the thread that
    reports the change. If it cannot be written, a warning is logged and the searches continue."""

    def __init__(self, write: Callable[[], object], *, wanted: bool) -> None:
        """`write` writes the page. None is written unless it is `wanted`, and its packages are there."""
        self._write = write if wanted and not missing_packages() else None
        self._changed = False
        self._written_at: float | None = None

    def change(self) -> None:
        """Reports a change that the page does not show yet."""
        self._changed = True
        self._write_if_due()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """While the block runs, a change that came too soon after another is written later."""
        looking = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            self._write_if_due()

    def _write_if_due(self) -> None:
        now = time.monotonic()
        is_time = self._written_at is None or now - self._written_at >= EVERY_S
        if self._write is None or not (self._changed and is_time):
            return
        self._changed = False
        try:
            self._write()
        except OSError as error:
            logger.warning("cannot write the report: %s", error)
        self._written_at = time.monotonic()
