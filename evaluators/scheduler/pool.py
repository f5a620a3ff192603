"""Evaluates many kernels concurrently: builds on CPU cores, measurements on devices, one lane each.

`Pool` is the evaluator that a search uses. A host does its work (`host.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self, TypeVar
from weakref import WeakValueDictionary

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
from evaluators.scheduler.devices import Devices
from evaluators.scheduler.host import Host, OnStage, WorkerDied
from evaluators.scheduler.job import Job
from evaluators.scheduler.known_problems import KnownProblems
from evaluators.scheduler.lanes import CannotOpen, Lanes
from evaluators.scheduler.on_cases import OnCases
from evaluators.scheduler.on_configurations import OnConfigurations

isolation_logger = logging.getLogger("evaluators.isolation")

T = TypeVar("T")

OPENING_TRIES = 2


class Pool:
    """Evaluates kernels in two lanes, builds and measurements. It repeats lost work on another worker, and
    continues without a device that fails or has become slow. A worker that dies is never the kernel's fault:
    kernels run in processes below it, confined.

    As a context manager, it closes at the end of the block, immediately if the block raises.

    Args:
        host: where the work is done.

    Attributes:
        devices_set_aside: reasons by device number, see `evaluators.scheduler.devices.Devices`.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._devices = Devices(host)
        self._problems = KnownProblems(self._open_one)
        self._lanes = Lanes(host, self._devices, self._problems)
        self._on_cases = OnCases(self._lanes.verdicts, self._lanes.together)
        self._on_configurations = OnConfigurations(
            self._compare, self._judge, self._lanes.can_build, host.configs
        )
        self._isolation: set[str] = set()
        self._at_work: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self.devices_set_aside = self._devices.set_aside

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
                async with self._devices.lease(what, failed_on) as device:
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
            return self._lanes.without_measurement(job, Status.COMPILE_ERROR, str(error))
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
        return (await self._lanes.verdicts([job]))[0]

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
                    return await self._lanes.probe(job)
        finally:
            opening.cancel()

    @asynccontextmanager
    async def lent(self, problem: Problem) -> AsyncIterator[int]:
        """The number of a device on which nothing is measured during the block."""
        async with self._devices.lease(problem.id, []) as device:
            yield device

    async def _compare(self, problem: Problem, jobs: list[Job], effort: Effort) -> dict[str, Evaluation]:
        """The verdicts on several kernels in one session, by kernel id."""
        together = self._on_cases.compare if problem.cases else self._lanes.together
        return await together(problem, jobs, effort)

    def close(self, *, now: bool = False) -> None:
        """Ends every process that was started.

        Args:
            now: do not wait for work in progress.
        """
        self._devices.close()
        self._host.close(now=now)
        self._lanes.sum_up()

    async def _open_one(self, problem: Problem) -> dict[str, str]:
        self._problems.require_fit(problem)
        failed_on: list[int] = []
        reason, tries = "", 0
        while True:
            try:
                async with self._devices.lease(problem.id, failed_on) as device:
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
                self._devices.blame(failed_on, device, reason)
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
