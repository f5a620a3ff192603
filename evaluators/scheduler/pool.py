"""Evaluates many kernels concurrently: builds on CPU cores, measurements on devices, one lane each.

`Pool` is the evaluator that a search uses. A host does its work (`host.py`).
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from evaluators.base.cause import cause_of
from evaluators.build.builder import Build
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.records.configurations import (
    InvalidConfigurations,
    configurations,
    declares_configurations,
    judged_kernel,
)
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.opening import Opening
from evaluators.records.probe import Probe
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import Threshold, after_quick_stage, reaches, with_quick_stage
from evaluators.records.reference_audit import ReferenceAudit
from evaluators.records.timing import Effort
from evaluators.scheduler.companions import with_companions
from evaluators.scheduler.device_health import DeviceHealth
from evaluators.scheduler.device_queue import DeviceQueue
from evaluators.scheduler.device_use import LeaseClock
from evaluators.scheduler.host import DeviceGone, Host, OnStage, WorkerDied
from evaluators.scheduler.job import Job
from evaluators.scheduler.known_problems import KnownProblems
from evaluators.scheduler.on_cases import OnCases
from evaluators.scheduler.on_configurations import OnConfigurations
from evaluators.scheduler.retries import Retries

logger = logging.getLogger(__name__)
isolation_logger = logging.getLogger("evaluators.isolation")

T = TypeVar("T")

TRIES = 3
OPENING_TRIES = 2
IN_FRONT = 2
"""Kernels per core that may be building or waiting for a device. Building everything at once would occupy all
cores and slow the measurements down."""


class CannotOpen(WorkerBroken):
    """No device could open the problem, or there is none."""


class Pool:
    """Evaluates kernels in two lanes, builds and measurements. It repeats lost work on another worker, and
    continues without a device that fails or has become slow. A worker that dies is never the kernel's fault:
    kernels run in processes below it, confined.

    As a context manager, it closes at the end of the block, immediately if the block raises.

    Args:
        host: where the work is done.

    Attributes:
        devices_set_aside: reasons by device number. The last device stays in use even if it is listed. A
            device whose node is gone is listed until another takes its place.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._builds = asyncio.Semaphore(host.cores)
        self._in_front = asyncio.Semaphore(IN_FRONT * host.cores)
        self._on_cases = OnCases(self._settle, self._settle_together)
        self._on_configurations = OnConfigurations(self._compare, self._judge, self._can_build, host.configs)
        self._devices = DeviceQueue(host.devices)
        self._health = DeviceHealth()
        self._problems = KnownProblems(self._open_one)
        self._retries = Retries(logger)
        self._architecture = ""
        self._isolation: set[str] = set()
        self._asking = asyncio.Lock()
        self._at_work: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self.devices_set_aside: dict[int, str] = {}
        self._returning: dict[int, asyncio.Task[None]] = {}
        """Waits for each device whose node is gone."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(now=kind is not None)

    async def describe(self, problem: Problem) -> dict[str, str]:
        """The facts of device and software that will measure the problem.

        Raises:
            CannotOpen: if no device could open the problem.
            UnfitProblem: if its reference cannot be run or cannot judge.
        """
        return await self._problems.describe(problem)

    async def audit(self, problem: Problem) -> ReferenceAudit:
        """How well the problem's reference can judge kernels, found out on the next free device.

        Raises:
            CannotOpen: if two tries failed for other reasons than the reference.
        """
        return await self._on_any(f"audit of {problem.id}", lambda device: self._host.audit(device, problem))

    async def opening(self, problem: Problem) -> Opening:
        """How long opening the problem takes there, step by step.

        Raises:
            CannotOpen: if no device could open the problem.
            UnfitProblem: if its reference cannot be run or cannot judge.
        """
        return await self._on_any(problem.id, lambda device: self._host.opening(device, problem))

    async def _on_any(self, what: str, ask: Callable[[int], Awaitable[T]]) -> T:
        failed_on: list[int] = []
        tries = 0
        while True:
            try:
                async with self._lease(what, failed_on) as device:
                    return await ask(device)
            except UnfitProblem:
                raise
            except (WorkerBroken, WorkerDied) as error:
                tries += 1
                if tries == OPENING_TRIES:
                    raise CannotOpen(str(error)) from error

    async def evaluate(
        self, problem: Problem, kernel: Kernel, *, thorough: bool = False, on_stage: OnStage | None = None
    ) -> Evaluation:
        """Judges one kernel. Never raises for the kernel's own failure. Of a kernel that declares
        configurations, the verdict is on the best of them, with its values filled in (see
        `evaluators.records.configurations`).

        Args:
            problem: the problem that the kernel solves.
            kernel: the kernel to judge.
            thorough: measure longer, and against `torch.compile` too.
            on_stage: called at the beginning of the build (`building`), of the measurement (`measuring`) and
                of its steps.

        Returns:
            The verdict, with the timing if the kernel is correct.
        """
        return await self._evaluate(problem, kernel, Effort.THOROUGH if thorough else Effort.USUAL, on_stage)

    async def race(
        self, problem: Problem, kernel: Kernel, *, threshold: Threshold, on_stage: OnStage | None = None
    ) -> Evaluation:
        """Judges one kernel in two stages: quickly, and in full if it may be as fast as the threshold
        demands. The full stage starts anew, in a new process and on new inputs. A kernel for which a quick
        stage would save nothing is judged in full: one that declares configurations, which race already, or
        one for an untimed problem. Never raises for the kernel's own failure.

        Args:
            problem: the problem that the kernel solves.
            kernel: the kernel to judge.
            threshold: see `evaluators.records.race.Threshold`.
            on_stage: see `evaluate`.

        Returns:
            The verdict: `outpaced`, without a timing, if there was no full stage and the kernel seems right.
        """
        if threshold == 0 or not problem.timed or declares_configurations(kernel):
            return await self._evaluate(problem, kernel, Effort.FULL, on_stage)
        measured = await self._evaluate(problem, kernel, Effort.QUICK, on_stage)
        quick = after_quick_stage(measured, threshold)
        if not reaches(quick, threshold):
            return quick
        return with_quick_stage(await self._evaluate(problem, kernel, Effort.FULL, on_stage), quick)

    async def _evaluate(
        self, problem: Problem, kernel: Kernel, effort: Effort, on_stage: OnStage | None
    ) -> Evaluation:
        opening = asyncio.ensure_future(self._problems.some_facts(problem))  # builds do not wait for it
        opening.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # whoever awaits it or not
        job = Job(problem, kernel, effort, on_stage or (lambda stage: None), opening)
        try:
            declared = configurations(kernel, self._host.configs.most)
            with self._devices.demand.counting(1):
                async with self._alone(problem, [each.kernel for each in declared] or [kernel]):
                    if declared:
                        return await self._on_configurations.evaluate(job, declared)
                    return await self._judge(job)
        except InvalidConfigurations as error:
            return self._without_measurement(job, Status.COMPILE_ERROR, str(error))
        finally:
            opening.cancel()

    async def evaluate_beside(
        self,
        problem: Problem,
        kernel: Kernel,
        companions: Sequence[Kernel],
        *,
        on_stage: OnStage | None = None,
    ) -> Evaluation:
        """As `evaluate`; then times a correct kernel in alternating blocks with other kernels, for
        `Evaluation.paired`. A failure of that session changes no verdict."""
        found = await self.evaluate(problem, kernel, on_stage=on_stage)
        judged = judged_kernel(kernel, found)
        others = [each for each in companions if each.id != judged.id]
        if found.timing is None or not others:
            return found
        own, *rest = await self.compare(problem, [judged, *others])
        by_id = {each.id: evaluation for each, evaluation in zip(others, rest, strict=True)}
        return with_companions(found, own, by_id)

    async def _judge(self, job: Job) -> Evaluation:
        """The verdict on a kernel without configurations."""
        if job.problem.cases:
            return await self._on_cases.evaluate(job)
        return (await self._settle([job]))[0]

    @asynccontextmanager
    async def _alone(self, problem: Problem, kernels: Iterable[Kernel]) -> AsyncIterator[None]:
        """Each kernel is processed once at a time, because its folder always has the same name."""
        async with AsyncExitStack() as stack:
            for name in sorted({each.id for each in kernels}):
                lock = self._at_work.setdefault((problem.id, name), asyncio.Lock())
                await stack.enter_async_context(lock)
            yield

    async def compare(
        self, problem: Problem, kernels: Sequence[Kernel], *, thorough: bool = False
    ) -> list[Evaluation]:
        """Measures kernels against one another and against eager in one session.

        This finds the fastest of several correct kernels. Timing checks and attribution are left to
        `evaluate`, which must come before. A kernel that fails does not disturb the others.

        Args:
            problem: the problem that the kernels solve.
            kernels: the kernels to compare.
            thorough: measure longer.

        Returns:
            One evaluation per kernel, in order. The samples of all correct kernels are aligned by turn (see
            `timing.paired_speedup`).
        """
        opening = asyncio.ensure_future(self._problems.some_facts(problem))
        unique = {each.id: each for each in kernels}
        effort = Effort.THOROUGH if thorough else Effort.USUAL
        jobs = [Job(problem, each, effort, lambda stage: None, opening) for each in unique.values()]
        try:
            with self._devices.demand.counting(1):
                async with self._alone(problem, unique.values()):
                    found = await self._compare(problem, jobs, effort)
        finally:
            opening.cancel()
        return [found[each.id] for each in kernels]

    async def probe(self, problem: Problem, kernel: Kernel, *, on_stage: OnStage | None = None) -> Probe:
        """Builds and times a kernel without comparing its outputs. Never raises for the kernel's failure.

        Args:
            problem: the problem whose inputs the kernel is given; of several cases, the first timed one.
            kernel: the kernel to time.
            on_stage: called at the beginning of the build (`building`) and of the measurement
                (`measuring`).

        Returns:
            The times in ms, with their intervals, and the timeline if the kernel takes timestamps.

        Raises:
            ValueError: if the problem is not timed.
        """
        if not problem.timed:
            raise ValueError(f"{problem.name} is not timed, so that no kernel can be timed on it")
        opening = asyncio.ensure_future(self._problems.some_facts(problem))
        job = Job(problem, kernel, Effort.USUAL, on_stage or (lambda stage: None), opening)
        if problem.cases:
            job = job.on_case(next(each for each in problem.cases if each.weight))
        try:
            with self._devices.demand.counting(1):
                async with self._alone(problem, [kernel]):
                    return await self._settle_probe(job)
        finally:
            opening.cancel()

    @asynccontextmanager
    async def lent(self, problem: Problem) -> AsyncIterator[int]:
        """The number of a device on which nothing is measured during the block."""
        async with self._devices.lease(problem.id) as device:
            yield device

    async def _settle_probe(self, job: Job) -> Probe:
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
        async with self._lent(job, job.failed_on) as device:
            self._problems.require_fit(job.problem)
            build = await self._build(job)
            if build.status is not None:
                return replace(Probe.failed(build.status, build.log), build_s=build.seconds)
            job.on_stage("measuring")
            found = await self._host.probe(device, job.problem, job.kernel, build.archive)
            return replace(found, build_s=build.seconds, lease=job.clock.lease())

    async def _compare(self, problem: Problem, jobs: list[Job], effort: Effort) -> dict[str, Evaluation]:
        """The verdicts on several kernels in one session, by kernel id."""
        together = self._on_cases.compare if problem.cases else self._settle_together
        return await together(problem, jobs, effort)

    async def _settle_together(
        self, problem: Problem, jobs: list[Job], effort: Effort
    ) -> dict[str, Evaluation]:
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
        async with self._lent(jobs[0], failed_on) as device:
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

    async def _settle(self, jobs: Sequence[Job]) -> list[Evaluation]:
        """Verdicts on the first of these jobs, at least one. Several jobs are untimed cases of one kernel,
        measured one after another on one device while the kernel is right."""
        found: list[Evaluation] = []
        reason = ""
        for left in reversed(range(TRIES)):
            try:
                await self._try(jobs[len(found) :], found)
                return found
            except UnfitProblem as error:
                return [*found, self._without_measurement(jobs[0], Status.UNFIT_REFERENCE, str(error))]
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
        return [*found, self._without_measurement(jobs[0], Status.INFRASTRUCTURE_ERROR, reason)]

    def _without_measurement(self, job: Job, status: Status, log: str) -> Evaluation:
        """The verdict on a job that was not measured."""
        return Evaluation(status=status, log=log, environment=self._problems.facts(job.problem))

    def close(self, *, now: bool = False) -> None:
        """Ends every process that was started.

        Args:
            now: do not wait for work in progress.
        """
        for each in self._returning.values():
            with suppress(RuntimeError):  # its event loop is closed
                each.cancel()
        self._host.close(now=now)
        self._retries.sum_up()

    async def _open_one(self, problem: Problem) -> dict[str, str]:
        self._problems.require_fit(problem)
        failed_on: list[int] = []
        reason, tries = "", 0
        while True:
            try:
                async with self._lease(problem.id, failed_on) as device:
                    facts = await self._host.facts(device, problem)
            except UnfitProblem as error:
                self._problems.note_unfit(problem, error)
                raise
            except (WorkerBroken, WorkerDied) as error:
                reason, tries = str(error), tries + 1
                died = isinstance(error, WorkerDied)  # another takes its place, even on the last device
                if tries >= (OPENING_TRIES if died else min(OPENING_TRIES, self._host.devices)):
                    raise CannotOpen(reason) from error
            else:
                self._blame(failed_on, device, reason)
                self._problems.note_fit(problem)
                self._report_isolation(facts)
                return facts

    def _report_isolation(self, facts: Mapping[str, str]) -> None:
        """Logs, once, how kernels are confined, and why not better."""
        reached, why = facts.get("isolation", ""), facts.get("isolation_missing", "")
        if reached and reached not in self._isolation:
            self._isolation.add(reached)
            level = logging.WARNING if why else logging.INFO
            isolation_logger.log(level, "kernels are confined by %s", f"{reached}; {why}" if why else reached)

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
            async with self._lent(job, job.failed_on) as device:
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

    @asynccontextmanager
    async def _lent(self, job: Job, failed_on: list[int]) -> AsyncIterator[int]:
        """A device for the duration of the block, as `_lease` gives one. The job's clock
        measures how long it waits, and how long it has the device."""
        async with AsyncExitStack() as lease:
            with job.clock.waiting():
                device = await lease.enter_async_context(
                    self._lease(job.problem.id, failed_on, place=job.place)
                )
            idle_s = self._devices.idle_s[device]
            with self._devices.demand.counting(-1), job.clock.holding(device, idle_s=idle_s):
                yield device

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
        self._blame(job.failed_on, device, job.reason)
        about = evaluation.environment
        canary_ms = float(about["canary_ms"]) if about.get("canary_ms") else None
        self._set_aside(device, self._health.worked(device, about.get("device", ""), canary_ms))
        return _with_build(evaluation, build)

    async def _build(self, job: Job) -> Build:
        """The kernel's build, which is kept if a worker dies in the measurement after it."""
        if job.build is None:
            architecture = await self._architecture_of(job.problem)
            job.on_stage("building")
            job.build = await self._host.build(job.built_for, job.kernel, architecture)
        return job.build

    async def _can_build(self, job: Job) -> bool:
        """Whether a kernel can be built, as far as that can be found out without occupying a device."""
        if job.problem.device != "cuda":
            return True
        async with AsyncExitStack() as building:
            await _enter(job.clock, building, self._in_front, self._builds)
            try:
                return (await self._build(job)).status is None
            except (WorkerBroken, WorkerDied):
                return True  # it is tried again when it is compared

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

    def _blame(self, failed_on: Sequence[int], succeeded_on: int, reason: str) -> None:
        """Devices on which a kernel failed are at fault if it succeeds on another and they are not gone."""
        for device in failed_on:
            if device != succeeded_on and device not in self._returning:
                self._set_aside(device, self._health.at_fault(device, reason))

    @asynccontextmanager
    async def _lease(
        self, what: str, failed_on: list[int], *, place: int | None = None
    ) -> AsyncIterator[int]:
        """A device that is not in `failed_on`, to which it is added if the block fails because of it. One
        that is gone is not to blame; it is left out until it is back."""
        async with self._devices.lease(what, failed_on, place=place) as device:
            try:
                yield device
            except UnfitProblem:
                raise
            except DeviceGone as error:
                if device not in self._returning:
                    self._set_aside(device, str(error))
                    self._returning[device] = asyncio.create_task(self._take_back(device))
                raise
            except (WorkerBroken, WorkerDied):
                failed_on.append(device)
                raise

    async def _take_back(self, device: int) -> None:
        """Uses a device again as soon as it is back."""
        await self._host.until_back(device)
        logger.warning("device %d is back", device)
        self._health.replaced(device)
        del self._returning[device], self.devices_set_aside[device]
        self._devices.take_back(device)
        for each in self._returning:  # one may be in use because it was the last one
            self._devices.set_aside(each)

    def _set_aside(self, device: int, reason: str) -> None:
        if not reason or device in self.devices_set_aside:
            return
        self.devices_set_aside[device] = reason
        if self._devices.in_use == {device}:
            logger.warning("device %d stays in use because it is the last one, although %s", device, reason)
            return
        logger.warning("device %d is set aside: %s", device, reason)
        self._devices.set_aside(device)


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
