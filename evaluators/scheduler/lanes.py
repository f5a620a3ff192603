"""The builds and measurements of a pool, repeated where this machine and not the kernel is at fault."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from evaluators.base.cause import cause_of
from evaluators.build.builder import Build
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.probe import Probe
from evaluators.records.problem import Problem
from evaluators.records.timing import Effort
from evaluators.scheduler.device_use import LeaseClock
from evaluators.scheduler.devices import Devices
from evaluators.scheduler.host import Host, WorkerDied
from evaluators.scheduler.job import Job
from evaluators.scheduler.known_problems import KnownProblems
from evaluators.scheduler.retries import Retries

logger = logging.getLogger(__name__)

TRIES = 3
IN_FRONT = 2
"""Kernels per core that may be building or waiting for a device. Building everything at once would occupy all
cores and slow the measurements down."""


class CannotOpen(WorkerBroken):
    """No device could open the problem, or there is none."""


class Lanes:
    """Builds on a host's cores, and measurements on its devices. What a worker that died had not
    finished is done again on another."""

    def __init__(self, host: Host, devices: Devices, problems: KnownProblems) -> None:
        self._host, self._devices, self._problems = host, devices, problems
        self._builds = asyncio.Semaphore(host.cores)
        self._in_front = asyncio.Semaphore(IN_FRONT * host.cores)
        self._retries = Retries(logger)
        self._architecture = ""
        self._asking = asyncio.Lock()

    async def verdicts(self, jobs: Sequence[Job]) -> list[Evaluation]:
        """Verdicts on the first of these jobs, at least one. Several jobs are untimed cases of one kernel,
        measured one after another on one device while the kernel is right."""
        found: list[Evaluation] = []
        reason = ""
        for left in reversed(range(TRIES)):
            try:
                await self._try(jobs[len(found) :], found)
                return found
            except UnfitProblem as error:
                return [*found, self.without_measurement(jobs[0], Status.UNFIT_REFERENCE, str(error))]
            except CannotOpen as error:
                reason = str(error)
                break
            except (WorkerDied, WorkerBroken) as error:
                reason = str(error)
            except Exception as error:
                # Whatever one kernel exposes in the evaluator must not end the search.
                reason = "".join(traceback.format_exception(error))
            jobs[len(found)].reason = reason
            if left:
                self._retries.tell(jobs[0].kernel.id, reason)
        return [*found, self.without_measurement(jobs[0], Status.INFRASTRUCTURE_ERROR, reason)]

    def without_measurement(self, job: Job, status: Status, log: str) -> Evaluation:
        """The verdict on a job that was not measured."""
        return Evaluation(status=status, log=log, environment=self._problems.facts(job.problem))

    async def together(self, problem: Problem, jobs: list[Job], effort: Effort) -> dict[str, Evaluation]:
        """The verdicts on several kernels in one session, by kernel id."""
        failed_on: list[int] = []
        reason = ""
        for _ in range(TRIES):
            try:
                return await self._try_together(problem, jobs, effort, failed_on)
            except CannotOpen as error:
                reason = str(error)
                break
            except (WorkerDied, WorkerBroken) as error:
                reason = str(error)
            except Exception as error:
                # As for a single kernel: it must not end the search.
                logger.exception("the evaluator failed when it compared %d kernels", len(jobs))
                reason = f"{type(error).__name__}: {error}"
            logger.warning("%d kernels are compared again: %s", len(jobs), cause_of(reason))
        failed = Evaluation(
            status=Status.INFRASTRUCTURE_ERROR, log=reason, environment=self._problems.facts(problem)
        )
        return {job.kernel.id: failed for job in jobs}

    async def _try_together(
        self, problem: Problem, jobs: list[Job], effort: Effort, failed_on: list[int]
    ) -> dict[str, Evaluation]:
        clock = jobs[0].clock
        if problem.device == "cuda":
            async with AsyncExitStack() as in_front:
                await _enter(clock, in_front, self._in_front)
                await self._build_all(jobs)
        with clock.waiting():
            facts = await jobs[0].opening
        async with self._devices.lent(jobs[0], failed_on) as device:
            with clock.building():
                builds = await self._build_all(jobs)
            found = {
                name: _failed_build(each, facts) for name, each in builds.items() if each.status is not None
            }
            built = [job.kernel for job in jobs if job.kernel.id not in found]
            if built:
                jobs[0].on_stage("measuring")
                archives = [builds[each.id].archive for each in built]
                evaluations = await self._host.compare(device, problem, built, archives, effort)
                lease = clock.lease().shared(len(built))
                for kernel, evaluation in zip(built, evaluations, strict=True):
                    timed = evaluation.held(lease)
                    found[kernel.id] = _with_build(timed, builds[kernel.id])
            return found

    async def probe(self, job: Job) -> Probe:
        """The result, from the first of TRIES that this machine does not disturb."""
        reason = ""
        for left in reversed(range(TRIES)):
            try:
                return await self._try_probe(job)
            except UnfitProblem as error:
                return Probe.failed(Status.UNFIT_REFERENCE, str(error))
            except CannotOpen as error:
                return Probe.failed(Status.INFRASTRUCTURE_ERROR, str(error))
            except (WorkerDied, WorkerBroken) as error:
                reason = str(error)
            if left:
                self._retries.tell(job.kernel.id, reason)
        return Probe.failed(Status.INFRASTRUCTURE_ERROR, reason)

    async def _try_probe(self, job: Job) -> Probe:
        if job.problem.device == "cuda":
            async with AsyncExitStack() as building:
                await _enter(job.clock, building, self._in_front, self._builds)
                await self._build(job)
        with job.clock.waiting():
            await job.opening
        async with self._devices.lent(job, job.failed_on) as device:
            self._problems.require_fit(job.problem)
            build = await self._build(job)
            if build.status is not None:
                return replace(Probe.failed(build.status, build.log), build_s=build.seconds)
            job.on_stage("measuring")
            found = await self._host.probe(device, job.problem, job.kernel, build.archive)
            return replace(found, build_s=build.seconds, lease=job.clock.lease())

    async def can_build(self, job: Job) -> bool:
        """Whether a kernel can be built, as far as that can be found out without occupying a device."""
        if job.problem.device != "cuda":
            return True
        async with AsyncExitStack() as building:
            await _enter(job.clock, building, self._in_front, self._builds)
            try:
                return (await self._build(job)).status is None
            except (WorkerBroken, WorkerDied):
                return True  # it is tried again when it is compared

    def sum_up(self) -> None:
        """Logs why work was repeated."""
        self._retries.sum_up()

    async def _try(self, jobs: Sequence[Job], found: list[Evaluation]) -> None:
        """Adds verdicts to `found`. Raises what went wrong with the first job without one."""
        job = jobs[0]
        self._problems.require_fit(job.problem)
        async with AsyncExitStack() as in_front:
            if job.problem.device == "cuda":
                await _enter(job.clock, in_front, self._in_front)
                async with AsyncExitStack() as building:
                    await _enter(job.clock, building, self._builds)
                    await self._build(job)
            with job.clock.waiting():
                facts = await job.opening
            if job.build is not None and job.build.status is not None:
                found.append(_failed_build(job.build, facts))
                return
            async with self._devices.lent(job, job.failed_on) as device:
                await in_front.aclose()  # the next may be built
                self._problems.require_fit(job.problem)  # another job may have found out meanwhile
                # On a CPU a build would disturb a measurement, so both use the one lane.
                with job.clock.building():
                    build = await self._build(job)
                if build.status is not None:
                    found.append(_failed_build(build, facts).held(job.clock.lease()))
                    return
                for number, each in enumerate(jobs, start=1):
                    each.build = build
                    with each.clock.holding(device):
                        measured = await self._measured(device, each, build, more=number < len(jobs))
                    found.append(measured.held(each.clock.lease()))
                    if found[-1].status is not Status.CORRECT:
                        return

    async def _measured(self, device: int, job: Job, build: Build, *, more: bool) -> Evaluation:
        """Measures on the leased device. `more`: another case of the kernel is next there."""
        try:
            self._problems.require_fit(job.problem)
            job.on_stage("measuring")
            evaluation = await self._host.measure(
                device, job.problem, job.kernel, build.archive, job.effort, more, job.on_stage
            )
        except UnfitProblem as error:
            if self._problems.is_fit(job.problem):  # it was opened before, so the device is at fault
                raise WorkerBroken(str(error)) from error
            self._problems.note_unfit(job.problem, error)
            raise
        self._problems.note_fit(job.problem)
        self._devices.worked(device, evaluation.environment, job.failed_on, job.reason)
        return _with_build(evaluation, build)

    async def _build(self, job: Job) -> Build:
        """The kernel's build, which is kept if a worker dies in the measurement after it."""
        if job.build is None:
            architecture = await self._architecture_of(job.problem)
            job.on_stage("building")
            job.build = await self._host.build(job.built_for, job.kernel, architecture)
        return job.build

    async def _build_all(self, jobs: Sequence[Job]) -> dict[str, Build]:
        """The builds of several kernels, made concurrently, by kernel id. An error is raised when all have
        ended."""

        async def build(job: Job) -> Build:
            async with self._builds:
                return await self._build(job)

        left = [job for job in jobs if job.build is None]
        made = await asyncio.gather(*map(build, left), return_exceptions=True)
        if errors := [each for each in made if isinstance(each, BaseException)]:
            raise errors[0]
        return {job.kernel.id: job.build for job in jobs if job.build is not None}

    async def _architecture_of(self, problem: Problem) -> str:
        if problem.device == "cpu":
            return ""
        async with self._asking:
            self._architecture = self._architecture or await self._host.architecture()
        return self._architecture


async def _enter(clock: LeaseClock, stack: AsyncExitStack, *limits: asyncio.Semaphore) -> None:
    """Waits until there is room within these limits, for the duration of the stack."""
    with clock.waiting():
        for each in limits:
            await stack.enter_async_context(each)


def _with_build(evaluation: Evaluation, build: Build) -> Evaluation:
    """The verdict with what is known of the kernel's build."""
    return replace(evaluation, build_s=build.seconds, resources=build.resources)


def _failed_build(build: Build, facts: dict[str, str]) -> Evaluation:
    """The verdict on a kernel that cannot be built."""
    assert build.status is not None
    return Evaluation(status=build.status, log=build.log, environment=facts, build_s=build.seconds)
