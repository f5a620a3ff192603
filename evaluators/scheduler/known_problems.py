"""What a pool knows about its problems: the facts of device and software, and which references cannot
judge."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from evaluators.device.child_processes import UnansweredProblem, UnfitProblem
from evaluators.records.problem import Problem
from evaluators.scheduler.on_cases import first_of


class KnownProblems:
    """Problems by id. A problem is opened if nothing is known about it yet."""

    def __init__(self, open_one: Callable[[Problem], Awaitable[dict[str, str]]]) -> None:
        """`open_one` opens a problem without cases on any device, and returns the facts."""
        self._open_one = open_one
        self._opening = asyncio.Lock()
        self._facts: dict[str, dict[str, str]] = {}
        self._fit: set[str] = set()
        self._unfit: dict[str, str] = {}
        """Reasons by id. A problem with cases is listed if one of them got no answer."""

    async def describe(self, problem: Problem) -> dict[str, str]:
        """The facts of this problem. Raises whatever opening it raises."""
        async with self._opening:
            if problem.id not in self._facts:
                self._facts[problem.id] = await self._open(problem)
        return dict(self._facts[problem.id])

    async def some_facts(self, problem: Problem) -> dict[str, str]:
        """The facts of any problem. Only the first problem is opened for this; others are opened when they
        are measured."""
        if not self.facts(problem):
            async with self._opening:
                if not self.facts(problem):
                    self._facts[problem.id] = await self._open(problem)
        return self.facts(problem)

    def facts(self, problem: Problem) -> dict[str, str]:
        """The facts of this problem, or else of another: which devices and software there are."""
        return self._facts.get(problem.id) or next(iter(self._facts.values()), {})

    def is_fit(self, problem: Problem) -> bool:
        """Whether the problem has been opened successfully."""
        return problem.id in self._fit

    def note_fit(self, problem: Problem) -> None:
        """Records that the problem was opened successfully."""
        self._fit.add(problem.id)

    def note_unfit(self, problem: Problem, error: UnfitProblem) -> None:
        """Records that its reference cannot be run or cannot judge."""
        self._unfit[problem.id] = str(error)
        if isinstance(error, UnansweredProblem) and problem.case_of:
            self._unfit[problem.case_of] = f"in another case {error}"

    def require_fit(self, problem: Problem) -> None:
        """Raises UnfitProblem if the problem is known to be unfit, so that no worker finds it out again for
        another kernel. A case that has been opened successfully stays fit."""
        ids = (problem.id,) if self.is_fit(problem) else (problem.id, problem.case_of)
        if reasons := [self._unfit[each] for each in ids if each in self._unfit]:
            raise UnfitProblem(reasons[0])

    async def _open(self, problem: Problem) -> dict[str, str]:
        *others, last = first_of(problem)
        for each in others:
            with contextlib.suppress(UnfitProblem):
                return await self._open_one(each)
        return await self._open_one(last)
