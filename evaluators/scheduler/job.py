"""One kernel on its way through a pool."""

from __future__ import annotations

import asyncio

from evaluators.build.builder import Build
from evaluators.records.problem import Case, Kernel, Problem
from evaluators.scheduler.host import OnStage


class Job:
    """One kernel on its way to a verdict, over several tries."""

    def __init__(
        self,
        problem: Problem,
        kernel: Kernel,
        thorough: bool,
        on_stage: OnStage,
        opening: asyncio.Future[dict[str, str]],
    ) -> None:
        self.problem, self.kernel, self.thorough = problem, kernel, thorough
        self.on_stage = on_stage
        self.opening = opening
        """Ends when some problem is open on some device, with the facts of it."""
        self.built_for = problem
        """What the kernel is built for: of a case the whole problem, so that a build serves all of them."""
        self.build: Build | None = None
        self.failed_on: list[int] = []
        self.reason = ""
        """Of the last failed try."""

    def on_case(self, case: Case) -> Job:
        """The same kernel on a case of the problem, with the build that there is."""
        thorough = self.thorough and case.weight > 0
        job = Job(self.problem.of_case(case), self.kernel, thorough, self.on_stage, self.opening)
        job.built_for, job.build = self.problem, self.build
        return job
