"""Evaluates kernels on problems with several cases: each case is a problem by itself, the build is one.

The cases that are not timed come first: they take less time, and a wrong kernel is found out by most of them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from evaluators.records.cases import HELD_OUT, MOST_FAILURES, held_out, summed_up
from evaluators.records.evaluation import CaseResult, Evaluation, Status
from evaluators.records.problem import Case, Problem
from evaluators.reference.loading import own_held_out
from evaluators.scheduler.job import Job

MOST_DRAWS = 20
"""Held-out cases that are drawn at most for a problem: some references take few sizes."""

Settle = Callable[[Sequence[Job]], Awaitable[list[Evaluation]]]
SettleTogether = Callable[[Problem, list[Job], bool], Awaitable[dict[str, Evaluation]]]


class OnCases:
    """A pool's evaluations over cases. `settle` has the verdicts on a kernel in the first of some cases, at
    least one; `settle_together` those on several kernels in one case."""

    def __init__(self, settle: Settle, settle_together: SettleTogether) -> None:
        self._settle, self._settle_together = settle, settle_together
        self._held_out: dict[str, _HeldOut] = {}
        """By the problem's id: the same for all kernels, which are compared with one another."""

    async def evaluate(self, job: Job) -> Evaluation:
        """The verdict on a kernel over all cases, those of the problem first. A reference that is unfit in a
        case of its own is the whole verdict, unless that can be dropped and others have a weight; so is a
        failure of ours."""
        problem = job.problem
        if problem.id not in self._held_out:
            self._held_out[problem.id] = _HeldOut(problem)
        drawn = self._held_out[problem.id]
        left = deque((*sorted(problem.cases, key=lambda each: each.weight > 0), *drawn.cases))
        results: list[CaseResult] = []
        while left and not _is_settled(results, left[0]):
            parts = [job.on_case(each) for each in _in_a_row(left)]
            verdicts = await self._settle(parts)
            job.build = parts[0].build
            if job.build is not None and job.build.status is not None:
                return verdicts[0]
            for found in verdicts:
                case = left.popleft()
                if case.held_out and found.status is Status.UNFIT_REFERENCE:
                    left.extend(drawn.instead_of(case))
                elif found.status.is_of_the_kernel or _is_dropped(case, found):
                    results.append(_result(case, found))
                else:
                    return _whole(case.name, found)
            if (nothing := _nothing_left(results, left)) is not None:
                return nothing
        places = {each.name: number for number, each in enumerate(problem.cases)}
        return summed_up(sorted(results, key=lambda each: places.get(each.name, len(places))))

    async def compare(self, problem: Problem, jobs: Sequence[Job], thorough: bool) -> dict[str, Evaluation]:
        """Of several kernels, by their ids, over the cases that have a weight."""
        results: dict[str, list[CaseResult]] = {job.kernel.id: [] for job in jobs}
        over: dict[str, Evaluation] = {}
        for case in filter(lambda each: each.weight, problem.cases):
            left = [job for job in jobs if job.kernel.id not in over]
            parts = [job.on_case(case) for job in left]
            found = await self._settle_together(problem.of_case(case), parts, thorough) if parts else {}
            for job, part in zip(left, parts, strict=True):
                job.build = part.build
                evaluation = found[job.kernel.id]
                if evaluation.status.is_of_the_kernel or _is_dropped(case, evaluation):
                    results[job.kernel.id].append(_result(case, evaluation))
                else:
                    over[job.kernel.id] = _whole(case.name, evaluation)
        for name, each in results.items():
            if name not in over:
                over[name] = _nothing_left(each, ()) or summed_up(each)
        return over


class _HeldOut:
    """The cases that were drawn for a problem, and are fit to judge as far as that is known."""

    def __init__(self, problem: Problem) -> None:
        generator = random.SystemRandom()
        self._drawn = held_out(problem, generator, own_held_out(problem, generator))
        self._names = {each.name for each in problem.cases}
        self._draws = 0
        self.cases: list[Case] = []
        while len(self.cases) < HELD_OUT and (more := self._another()):
            self.cases += more

    def instead_of(self, case: Case) -> list[Case]:
        """The next one, for a case whose reference cannot judge; none where there is none any more."""
        if case not in self.cases:  # another kernel has found it, too
            return []
        self.cases.remove(case)
        more = self._another()
        self.cases += more
        return more

    def _another(self) -> list[Case]:
        while self._draws < MOST_DRAWS:
            self._draws += 1
            case = next(self._drawn)
            if case.name not in self._names:
                self._names.add(case.name)
                return [case]
        return []


def first_of(problem: Problem) -> list[Problem]:
    """What is opened to know the device: the problem itself, or its first case, where it has cases; and what
    is opened in its place, one after the other, where its reference cannot judge."""
    if not problem.cases:
        return [problem]
    first, *others = problem.cases
    instead = [each for each in others if first.droppable and each.droppable]
    return [problem.of_case(each) for each in (first, *instead)]


def _in_a_row(left: Sequence[Case]) -> list[Case]:
    """The first case, and with it those that follow where none of them is timed. Held-out ones are asked
    after all others."""
    first = left[0]
    if first.weight:
        return [first]
    return list(takewhile(lambda each: not each.weight and each.held_out == first.held_out, left))


def _is_settled(results: Sequence[CaseResult], following: Case) -> bool:
    """Whether enough has failed: held-out cases are for kernels that are right on the others."""
    failures = sum(each.fails for each in results)
    return failures >= MOST_FAILURES or (failures > 0 and following.held_out)


def _is_dropped(case: Case, found: Evaluation) -> bool:
    return case.droppable and found.status is Status.UNFIT_REFERENCE


def _whole(case: str, found: Evaluation) -> Evaluation:
    """The verdict on the case of this name, for all of them."""
    return replace(found, log=f"case {case}: {found.log}")


def _nothing_left(results: Sequence[CaseResult], left: Iterable[Case]) -> Evaluation | None:
    """The verdict where no case with a weight can judge: none would be timed."""
    unfit = [each for each in results if each.evaluation.status is Status.UNFIT_REFERENCE and each.weight]
    judged = any(each.weight for each in results if each not in unfit)
    if not unfit or judged or any(each.weight for each in left):
        return None
    return _whole(unfit[0].name, unfit[0].evaluation)


def _result(case: Case, evaluation: Evaluation) -> CaseResult:
    return CaseResult(name=case.name, weight=case.weight, held_out=case.held_out, evaluation=evaluation)
