"""The work in flight of a search, and the stop that ends it: asyncio tasks that report when they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from evaluators.base.system_error import system_error
from search.engine.faults import fault

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class InFlight:
    """Tasks that run concurrently. If one raises, a stop is requested; the others continue until `drain`.
    `explain` puts an error into one line."""

    def __init__(self, explain: Callable[[BaseException], str] = fault) -> None:
        self._explain = explain
        self.stop: str | None = None
        """Why nothing new may be submitted; None as long as it may."""
        self.stops_at_once = False
        """Whether the stop does not wait for work in flight."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    def request_stop(self, reason: str, *, at_once: bool = False) -> None:
        """Requests a stop; only the first one counts. `at_once`: work in flight is not waited for. Call it in
        the event loop's thread."""
        if self.stop is None:
            logger.info("stopping: %s", reason)
            self.stop, self.stops_at_once = reason, at_once
            self._changed.set()

    def fail(self, what: str, error: BaseException) -> None:
        """Logs an error, with its traceback unless it is the system's, and requests a stop because of it."""
        why = self._explain(error)
        logger.error("%s failed: %s", what, why, exc_info=None if system_error(error) else error)
        self.request_stop(f"error: {what}: {why}")

    def spawn(self, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        """Starts a task; logs and reasons refer to it by `name`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._settled)
        return task

    def count(self, *words: str) -> int:
        """The number of tasks whose names begin with one of these words."""
        return sum(task.get_name().startswith(words) for task in self._tasks)

    async def changed(self) -> None:
        """Returns after a task has ended or a stop was requested."""
        self._changed.clear()
        await self._changed.wait()

    async def drain(self, grace_s: float) -> None:
        """Waits for all tasks. After a stop it waits at most `grace_s` seconds, or not at all, then cancels
        the rest."""
        while self._tasks and self.stop is None:
            await self.changed()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0 if self.stops_at_once else grace_s)
        self.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancels all tasks."""
        for task in self._tasks:
            task.cancel()

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(task.get_name(), error)
        self._changed.set()
