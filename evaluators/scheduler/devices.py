"""A pool's devices: lent to one job at a time, and left out while they cannot be trusted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.scheduler.device_health import DeviceHealth
from evaluators.scheduler.device_queue import DeviceQueue
from evaluators.scheduler.host import DeviceGone, Host, WorkerDied
from evaluators.scheduler.job import Job

logger = logging.getLogger(__name__)


class Devices:
    """Those of a host.

    Attributes:
        set_aside: reasons by device number. The last device stays in use even if it is listed. A device
            whose node is gone is listed until another takes its place.
    """

    def __init__(self, host: Host) -> None:
        self.set_aside: dict[int, str] = {}
        self._host = host
        self._queue = DeviceQueue(host.devices)
        self._health = DeviceHealth()
        self.demand = self._queue.demand
        self._returning: dict[int, asyncio.Task[None]] = {}
        """Waits for each device whose node is gone."""

    @property
    def in_use(self) -> set[int]:
        """The devices that are lent."""
        return self._queue.in_use

    @asynccontextmanager
    async def lease(self, what: str, failed_on: list[int], *, place: int | None = None) -> AsyncIterator[int]:
        """A device that is not in `failed_on`, to which it is added if the block fails because of it. One
        that is gone is not to blame; it is left out until it is back."""
        async with self._queue.lease(what, failed_on, place=place) as device:
            try:
                yield device
            except UnfitProblem:
                raise
            except DeviceGone as error:
                if device not in self._returning:
                    self._leave_out(device, str(error))
                    self._returning[device] = asyncio.create_task(self._take_back(device))
                raise
            except (WorkerBroken, WorkerDied):
                failed_on.append(device)
                raise

    @asynccontextmanager
    async def lent(self, job: Job, failed_on: list[int]) -> AsyncIterator[int]:
        """A device for the duration of the block, as `lease` gives one. The job's clock
        measures how long it waits, and how long it has the device."""
        async with AsyncExitStack() as lease:
            with job.clock.waiting():
                device = await lease.enter_async_context(
                    self.lease(job.problem.id, failed_on, place=job.place)
                )
            idle_s = self._queue.idle_s[device]
            with self.demand.counting(-1), job.clock.holding(device, idle_s=idle_s):
                yield device

    def worked(
        self, device: int, environment: Mapping[str, str], failed_on: Sequence[int], reason: str
    ) -> None:
        """Records a verdict of a device on a kernel that had failed on others before, with the last
        reason."""
        self.blame(failed_on, device, reason)
        canary_ms = float(environment["canary_ms"]) if environment.get("canary_ms") else None
        self._leave_out(device, self._health.worked(device, environment.get("device", ""), canary_ms))

    def blame(self, failed_on: Sequence[int], succeeded_on: int, reason: str) -> None:
        """Devices on which something failed are at fault if it succeeds on another and they are not gone."""
        for device in failed_on:
            if device != succeeded_on and device not in self._returning:
                self._leave_out(device, self._health.at_fault(device, reason))

    def close(self) -> None:
        """Waits for no device any longer."""
        for each in self._returning.values():
            with suppress(RuntimeError):  # its event loop is closed
                each.cancel()

    async def _take_back(self, device: int) -> None:
        """Uses a device again as soon as it is back."""
        await self._host.until_back(device)
        logger.warning("device %d is back", device)
        self._health.replaced(device)
        del self._returning[device], self.set_aside[device]
        self._queue.take_back(device)
        for each in self._returning:  # one may be in use because it was the last one
            self._queue.set_aside(each)

    def _leave_out(self, device: int, reason: str) -> None:
        if not reason or device in self.set_aside:
            return
        self.set_aside[device] = reason
        if self._queue.in_use == {device}:
            logger.warning("device %d stays in use because it is the last one, although %s", device, reason)
            return
        logger.warning("device %d is set aside: %s", device, reason)
        self._queue.set_aside(device)
