"""Gives verdicts on many kernels at once: builds on CPU cores, measurements on devices, one lane each.

`Pool` is the evaluator that a search uses. It does not know where its work is done: `local.py` has threads
of this process, for debugging; `cluster.py` has Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from evaluators.build import Build
from evaluators.evaluation import Evaluation, Status
from evaluators.problem import Kernel, Problem
from evaluators.worker import WorkerBroken

logger = logging.getLogger(__name__)

TRIES = 3


class WorkerDied(Exception):
    """The process or node that did the work is gone; another has taken its place."""


class Host(Protocol):
    """Where the work is done. `devices` measurements and `cores` builds run at a time."""

    devices: int
    cores: int

    async def facts(self, problem: Problem) -> dict[str, str]:
        """Opens the problem on a device. Raises WorkerBroken, with the reason, when it cannot be run."""
        ...

    async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
        """Raises WorkerDied."""
        ...

    async def measure(
        self, device: int, problem: Problem, kernel: Kernel, archive: bytes, thorough: bool
    ) -> Evaluation:
        """On the device with this number. Raises WorkerBroken or WorkerDied."""
        ...

    def close(self) -> None:
        """Ends everything that was started."""
        ...


class Pool:
    """The evaluator: sends kernels through the two lanes, gives lost work to another worker, and blames a
    kernel that kills two of them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._builds = asyncio.Semaphore(host.cores)
        self._devices: asyncio.Queue[int] = asyncio.Queue()
        for device in range(host.devices):
            self._devices.put_nowait(device)
        self._facts: dict[str, str] = {}

    async def describe(self, problem: Problem) -> dict[str, str]:
        """Device and software that will measure the problem. Raises WorkerBroken when it cannot be run."""
        self._facts = await self._host.facts(problem)
        return dict(self._facts)

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """The verdict on a kernel; never raises for the kernel's own failure. `on_stage` is told when the
        build and the measurement begin."""
        if not self._facts:
            await self.describe(problem)
        deaths = 0
        reason = ""
        for _ in range(TRIES):
            try:
                return await self._try(problem, kernel, thorough, on_stage or (lambda stage: None))
            except WorkerDied as error:
                deaths, reason = deaths + 1, str(error)
                if deaths == 2:
                    return Evaluation(status=Status.CRASHED, log=f"it took two workers down: {reason}")
            except WorkerBroken as error:
                reason = str(error)
            logger.warning("kernel %s is given to another worker: %s", kernel.id, reason)
        return Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=reason)

    def close(self) -> None:
        """Ends every process that was started."""
        self._host.close()

    async def _try(
        self, problem: Problem, kernel: Kernel, thorough: bool, on_stage: Callable[[str], None]
    ) -> Evaluation:
        on_gpu = problem.device == "cuda"
        if on_gpu:
            async with self._builds:
                on_stage("building")
                build = await self._host.build(problem, kernel, self._facts.get("architecture", ""))
        device = await self._devices.get()
        try:
            if not on_gpu:
                # On a CPU a build would disturb a measurement: both take the one lane.
                on_stage("building")
                build = await self._host.build(problem, kernel, "")
            if build.status is not None:
                log = build.log
                return Evaluation(
                    status=build.status, log=log, environment=self._facts, build_s=build.seconds
                )
            on_stage("measuring")
            evaluation = await self._host.measure(device, problem, kernel, build.archive, thorough)
            return replace(evaluation, build_s=build.seconds)
        finally:
            self._devices.put_nowait(device)


def scratch_root(name: str) -> Path:
    """The folder of all scratch folders of one pool, the same path on every node."""
    return Path("/tmp/ideatree") / name
