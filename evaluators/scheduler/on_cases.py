"""Evaluates kernels on problems with several cases. Each case is judged as a separate problem; they share one
build.

The untimed cases come first: they take less time, and most of them expose a wrong kernel.
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
from evaluators.records.timing import Effort
from evaluators.reference.loading import own_held_out
from evaluators.scheduler.job import Job

MOST_DRAWS = 20
"""Held-out cases to draw at most for a problem: some references accept few sizes."""

Settle = Callable[[Sequence[Job]], Awaitable[list[Evaluation]]]
SettleTogether = Callable[[Problem, list[Job], Effort], Awaitable[dict[str, Evaluation]]]


class OnCases:
    """A pool's evaluations over cases. `settle` returns the verdicts on a kernel in the first of the given
    cases, at least one; `settle_together` those on several kernels in one case."""

    def __init__(self, settle: Settle, settle_together: SettleTogether) -> None:
        self._settle, self._settle_together = settle, settle_together
        self._held_out: dict[str, _HeldOut] = {}
        """By the problem's id; the same for all kernels, so that they can be compared."""

    async def evaluate(self, job: Job) -> Evaluation:
        """The verdict on a kernel over all cases, the problem's own first; with QUICK effort over the timed
        ones. If a reference is unfit in one of the problem's, that is the whole verdict, unless the case can
        be dropped and others have a weight. So is a failure of ours."""
        problem = job.problem
        if problem.id not in self._held_out:
            self._held_out[problem.id] = _HeldOut(problem)
        drawn = self._held_out[problem.id]
        left = deque((*sorted(problem.cases, key=lambda each: each.weight > 0), *drawn.cases))
        if job.effort is Effort.QUICK:
            left = deque(each for each in problem.cases if each.weight)
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

    async def compare(self, problem: Problem, jobs: Sequence[Job], effort: Effort) -> dict[str, Evaluation]:
        """Compares several kernels, by id, over the cases that have a weight."""
        results: dict[str, list[CaseResult]] = {job.kernel.id: [] for job in jobs}
        over: dict[str, Evaluation] = {}
        for case in filter(lambda each: each.weight, problem.cases):
            left = [job for job in jobs if job.kernel.id not in over]
            parts = [job.on_case(case) for job in left]
            found = await self._settle_together(problem.of_case(case), parts, effort) if parts else {}
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
    """The held-out cases drawn for a problem that are fit to judge, as far as is known."""

    def __init__(self, problem: Problem) -> None:
        generator = random.SystemRandom()
        self._drawn = held_out(problem, generator, own_held_out(problem, generator))
        self._names = {each.name for each in problem.cases}
        self._draws = 0
        self.cases: list[Case] = []
        while len(self.cases) < HELD_OUT and (more := self._another()):
            self.cases += more

    def instead_of(self, case: Case) -> list[Case]:
        """The next drawn case, to replace one whose reference cannot judge; empty if there are no more."""
        if case not in self.cases:  # another kernel has already replaced it
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
    """What to open to learn about the device: the problem itself or its first case, followed by the cases to
    open instead if its reference cannot judge."""
    if not problem.cases:
        return [problem]
    first, *others = problem.cases
    instead = [each for each in others if first.droppable and each.droppable]
    return [problem.of_case(each) for each in (first, *instead)]


def _in_a_row(left: Sequence[Case]) -> list[Case]:
    """The first case, and the untimed ones that follow it. Held-out cases come after all others."""
    first = left[0]
    if first.weight:
        return [first]
    return list(takewhile(lambda each: not each.weight and each.held_out == first.held_out, left))


def _is_settled(results: Sequence[CaseResult], following: Case) -> bool:
    """Whether enough cases have failed. Held-out cases are only for kernels that are right on the others."""
    failures = sum(each.fails for each in results)
    return failures >= MOST_FAILURES or (failures > 0 and following.held_out)


def _is_dropped(case: Case, found: Evaluation) -> bool:
    return case.droppable and found.status is Status.UNFIT_REFERENCE


def _whole(case: str, found: Evaluation) -> Evaluation:
    """The verdict on this case, used for the whole problem."""
    return replace(found, log=f"case {case}: {found.log}")


def _nothing_left(results: Sequence[CaseResult], left: Iterable[Case]) -> Evaluation | None:
    """The verdict if no case with a weight can judge, so that none would be timed."""
    unfit = [each for each in results if each.evaluation.status is Status.UNFIT_REFERENCE and each.weight]
    judged = any(each.weight for each in results if each not in unfit)
    if not unfit or judged or any(each.weight for each in left):
        return None
    return _whole(unfit[0].name, unfit[0].evaluation)


def _result(case: Case, evaluation: Evaluation) -> CaseResult:
    return CaseResult(name=case.name, weight=case.weight, held_out=case.held_out, evaluation=evaluation)
