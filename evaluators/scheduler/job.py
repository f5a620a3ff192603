"""One kernel on its way through a pool."""

from __future__ import annotations

import asyncio

from evaluators.build.builder import Build
from evaluators.records.problem import Case, Kernel, Problem
from evaluators.records.timing import Effort
from evaluators.scheduler.device_queue import PLACES
from evaluators.scheduler.device_use import LeaseClock
from evaluators.scheduler.host import OnStage


class Job:
    """One kernel on its way to a verdict, over several tries."""

    def __init__(
        self,
        problem: Problem,
        kernel: Kernel,
        effort: Effort,
        on_stage: OnStage,
        opening: asyncio.Future[dict[str, str]],
    ) -> None:
        self.problem, self.kernel, self.effort = problem, kernel, effort
        self.on_stage = on_stage
        self.opening = opening
        """Completes with the facts once a problem is open on any device."""
        self.built_for = problem
        """The problem to build for; for a case the whole problem, so that one build serves all cases."""
        self.build: Build | None = None
        self.clock = LeaseClock()
        """Of its leases of devices."""
        self.failed_on: list[int] = []
        self.reason = ""
        """Why the last try failed."""
        self.place = next(PLACES)
        """In the queue for devices."""

    def of_kernel(self, kernel: Kernel) -> Job:
        """Another kernel for the same problem."""
        return Job(self.problem, kernel, self.effort, self.on_stage, self.opening)

    def on_case(self, case: Case) -> Job:
        """The same kernel, with its build so far, on a case of the problem."""
        is_thorough = self.effort is Effort.THOROUGH
        effort = Effort.USUAL if is_thorough and not case.weight else self.effort
        job = Job(self.problem.of_case(case), self.kernel, effort, self.on_stage, self.opening)
        job.built_for, job.build, job.place = self.problem, self.build, self.place
        return job
