"""A worker of a queue: takes requests, has a pool carry them out, and stores each verdict as soon as it is
made."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evaluators.base.cause import cause_of, first_line
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.device.settings import Settings
from evaluators.profiling.profiler import KernelProfiler, ProfileFailed
from evaluators.queue.requests import DeviceRequest, Operation
from evaluators.queue.sources import Claimed, RequestSource
from evaluators.queue.verdicts import DeviceVerdict
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation, Status
from evaluators.scheduler.pool import Pool

logger = logging.getLogger(__name__)

LOOK_EVERY_S, BEAT_EVERY_S = 0.5, 5.0
MOST_TRIES = 3
"""Workers that may die on a request, or fail to carry it out, before that is its verdict."""
FAILURES_IN_A_ROW = 3
"""Requests in a row that a worker could not carry out, after which it ends: the fault is probably its own."""
VERSIONS = ("torch", "cuda", "triton", "driver", "compiler", "nvcc")
"""The facts that a verdict repeats as versions."""


class WorkerAtFault(Exception):
    """The worker has failed at several requests in a row. The message gives the last reason in one line."""


@dataclass(frozen=True, kw_only=True)
class DeviceIdentity:
    """A worker, for its verdicts: its name, `cpu` or `cuda`, and the name of its devices."""

    worker: str
    device: str
    kind: str

    def serves(self, request: DeviceRequest) -> bool:
        """Whether its devices are those that the request needs."""
        return request.problem.device == self.device and request.kind in ("", self.kind)


class QueueWorker:
    """Serves requests until its time is over or it is told to stop.

    Args:
        source: Gives the requests and takes the verdicts.
        identity: The worker, for its verdicts.
        make_pool: Makes the pool for some settings. Only one is open at a time, because two would disturb
            each other's measurements.
        at_once: The number of requests to work on at a time, so that kernels are built while others are
            measured.
        seconds: Seconds until it stops; None: no limit.
        idle_s: Seconds without any request after which it stops; None: no limit.
        look_every_s: Seconds between two looks for requests.
        make_profiler: Makes the profiler for some settings and the pool's device with this number.
    """

    def __init__(
        self,
        source: RequestSource,
        identity: DeviceIdentity,
        make_pool: Callable[[Settings], Pool],
        *,
        at_once: int,
        seconds: float | None = None,
        idle_s: float | None = None,
        look_every_s: float = LOOK_EVERY_S,
        make_profiler: Callable[[Settings, int], KernelProfiler] = lambda settings, _: KernelProfiler(
            settings
        ),
    ) -> None:
        self._source, self._identity, self._make_pool = source, identity, make_pool
        self._make_profiler = make_profiler
        self._at_once, self._look_every_s = at_once, look_every_s
        self._idle_s = math.inf if idle_s is None else idle_s
        self._end_s = math.inf if seconds is None else time.monotonic() + seconds
        self._stop = asyncio.Event()
        self._settings: Settings | None = None
        self._pool: Pool | None = None
        self._profilers: dict[int, KernelProfiler] = {}
        """Those for the pool's settings, by device."""
        self._tasks: dict[asyncio.Task[DeviceVerdict], Claimed] = {}
        self._unstored: list[tuple[Claimed, DeviceVerdict]] = []
        """Verdicts that the disk has not taken yet."""
        self._failed: dict[str, str] = {}
        """The requests that failed here since the last one that did not, each with the reason."""
        self._said = ""
        """The last error of the disk."""
        self.answered = 0
        """The number of verdicts stored."""

    def stop(self) -> None:
        """Ends `run` soon: what is unfinished is left to others."""
        self._stop.set()

    async def run(self) -> None:
        """Serves. Raises WorkerAtFault."""
        beating = asyncio.create_task(self._beat())
        busy_s = time.monotonic()
        try:
            while not self._stop.is_set() and self._left_s > 0:
                self._take_more()
                if self._tasks or self._unstored:
                    busy_s = time.monotonic()
                elif self._source.ends or time.monotonic() - busy_s > self._idle_s:
                    return
                await self._wait()
                self._collect()
                if len(self._failed) >= FAILURES_IN_A_ROW:
                    count, last = len(self._failed), [*self._failed.values()][-1]
                    raise WorkerAtFault(f"{count} requests in a row failed here; the last: {last}")
        finally:
            beating.cancel()
            self._leave()

    @property
    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def _take_more(self) -> None:
        while len(self._tasks) < self._at_once:
            claimed = None
            with self._disk("the queue cannot be read"):
                claimed = self._source.take(self._identity.serves, self._is_ready)
            if claimed is None:
                return
            if claimed.failures >= MOST_TRIES:
                reason = f"{claimed.failures} workers died or failed while they carried it out"
                self._unstored.append((claimed, self._broken(claimed.request, reason)))
                continue
            pool = self._pool_for(claimed.request.settings)
            self._tasks[asyncio.create_task(self._carry_out(pool, claimed.request))] = claimed

    def _is_ready(self, request: DeviceRequest) -> bool:
        """Whether it can begin now. Requests with other settings wait until those under way have ended."""
        return request.cost_s <= self._left_s and (not self._tasks or request.settings == self._settings)

    def _pool_for(self, settings: Settings) -> Pool:
        if self._pool is None or settings != self._settings:
            self._close_pool(now=False)
            self._settings, self._pool = settings, self._make_pool(settings)
        return self._pool

    async def _wait(self) -> None:
        """Until a request ends or it is time to look for others."""
        pause_s = max(0.0, min(self._look_every_s, self._left_s))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({stopping, *self._tasks}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()

    def _collect(self) -> None:
        """Stores the verdicts that are there."""
        for task in [each for each in self._tasks if each.done()]:
            verdict, claimed = task.result(), self._tasks.pop(task)
            if verdict.is_lasting:
                self._failed.clear()
            else:
                self._failed[claimed.request.id] = _reason(verdict)
                logger.warning("request %s failed: %s", claimed.request.id, _reason(verdict))
            if verdict.is_lasting or claimed.failures + 1 >= MOST_TRIES:
                self._unstored.append((claimed, verdict))
            else:
                self._give_back(claimed, failed=True)
        self._store()

    def _store(self) -> None:
        with self._disk("a verdict cannot be stored yet"):
            while self._unstored:
                self._source.answer(*self._unstored[0])
                del self._unstored[0]
                self.answered += 1

    async def _carry_out(self, pool: Pool, request: DeviceRequest) -> DeviceVerdict:
        try:
            return await self._verdict(pool, request)
        except UnfitProblem as error:
            return self._sealed(request, unfit=str(error))
        except (WorkerBroken, OSError) as error:
            return self._broken(request, str(error))

    async def _verdict(self, pool: Pool, request: DeviceRequest) -> DeviceVerdict:
        problem, kernels = request.problem, request.kernels
        match request.operation:
            case Operation.DESCRIBE:
                facts = await pool.describe(problem)
                return self._sealed(request, facts, facts=facts)
            case Operation.AUDIT:
                return self._sealed(request, audit=await pool.audit(problem))
            case Operation.EVALUATE if request.companions:
                found = [await pool.evaluate_beside(problem, kernels[0], request.companions)]
            case Operation.EVALUATE | Operation.THOROUGH:
                thorough = request.operation is Operation.THOROUGH
                found = [await pool.evaluate(problem, each, thorough=thorough) for each in kernels]
            case Operation.RACE:
                found = [await pool.race(problem, each, threshold=request.threshold) for each in kernels]
            case Operation.COMPARE:
                found = await pool.compare(problem, kernels)
            case Operation.PROBE:
                facts = await pool.describe(problem)
                return self._sealed(request, facts, probe=await pool.probe(problem, kernels[0]))
            case Operation.DIAGNOSE:
                facts = await pool.describe(problem)
                diagnosis = await self._diagnosis(pool, request)
                about = {**facts, "isolation": diagnosis.isolation}
                return self._sealed(request, about, diagnosis=diagnosis)
        return self._sealed(request, found[0].environment, evaluations=tuple(found))

    async def _diagnosis(self, pool: Pool, request: DeviceRequest) -> Diagnosis:
        """The diagnosis; without a level if the kernel cannot be profiled. Raises OSError if this machine
        cannot profile."""
        wanted = request.profile
        assert wanted is not None
        async with pool.lent(request.problem) as device:
            if device not in self._profilers:
                self._profilers[device] = self._make_profiler(request.settings, device)
            try:
                return await self._profilers[device].profile_in_thread(
                    request.problem,
                    request.kernels[0],
                    wanted=wanted.level,
                    roofline=wanted.roofline,
                    call_ms=wanted.call_ms,
                )
            except ProfileFailed as error:
                return Diagnosis(missing={"profile": first_line(error)})

    def _sealed(
        self, request: DeviceRequest, environment: Mapping[str, str] | None = None, **found: Any
    ) -> DeviceVerdict:
        about = environment or {}
        return DeviceVerdict(
            request=request.id,
            worker=self._identity.worker,
            device=about.get("device") or self._identity.kind,
            isolation=about.get("isolation", ""),
            versions={name: about[name] for name in VERSIONS if name in about},
            **found,
        )

    def _broken(self, request: DeviceRequest, reason: str) -> DeviceVerdict:
        failed = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=reason)
        judged = len(request.kernels) if request.operation.judges else 0
        return self._sealed(request, evaluations=(failed,) * judged, broken=reason)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_EVERY_S)
            self._source.beat([*self._tasks.values(), *(claimed for claimed, _ in self._unstored)])

    def _leave(self) -> None:
        """Ends everything at once, and leaves to others what has no verdict."""
        crashed = {task for task in self._tasks if task.done() and task.exception() is not None}
        for task in crashed:
            self._give_back(self._tasks.pop(task), failed=True)
        self._collect()
        for task in self._tasks:
            task.cancel()
        self._close_pool(now=bool(self._tasks))
        for claimed in [*self._tasks.values(), *(claimed for claimed, _ in self._unstored)]:
            self._give_back(claimed, failed=False)

    def _give_back(self, claimed: Claimed, *, failed: bool) -> None:
        with self._disk("a request cannot be given back, so its lease has to expire"):
            self._source.give_back(claimed, failed=failed)

    def _close_pool(self, *, now: bool) -> None:
        if self._pool is not None:
            self._pool.close(now=now)
        self._pool = None
        self._profilers.clear()

    @contextlib.contextmanager
    def _disk(self, what: str) -> Iterator[None]:
        """An error of the disk in the block is logged once, and the work goes on: it may have room later."""
        try:
            yield
        except OSError as error:
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("%s: %s", what, error)


def _reason(verdict: DeviceVerdict) -> str:
    logs = [each.log for each in verdict.evaluations if not each.is_lasting]
    if verdict.probe is not None and not verdict.probe.is_lasting:
        logs.append(verdict.probe.log)
    return cause_of(next(filter(None, [verdict.broken, verdict.unfit, *logs]), ""))
