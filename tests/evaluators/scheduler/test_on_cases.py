"""A pool on problems with several cases: one build, one measurement per case, and when that suffices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evaluators.build.builder import Build
from evaluators.device.child_processes import UnansweredProblem, UnfitProblem, WorkerBroken
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Case, Kernel, Problem
from evaluators.records.timing import Effort
from evaluators.scheduler.host import OnStage, WorkerDied
from evaluators.scheduler.pool import Pool
from tests.evaluators.records.test_cases import correct
from tests.evaluators.scheduler.fake_host import ON_GPU, FakeHost, kernel

CASES = tuple(Case(sizes={"n": n}, weight=weight) for n, weight in ((16, 1.0), (100, 3.0), (33, 0.0)))
MANY = replace(ON_GPU, cases=CASES)
UNTIMED = tuple(Case(sizes={"n": n}, weight=0.0) for n in (40, 50, 60))
LONG = replace(ON_GPU, cases=(*CASES, *UNTIMED))

Measured = Callable[[Problem, Kernel], Evaluation]


def droppable(problem: Problem) -> Problem:
    """A problem whose cases may be dropped if they cannot judge."""
    return replace(problem, cases=tuple(replace(each, droppable=True) for each in problem.cases))


class CasesHost(FakeHost):
    """Answers by problem and kernel; without `answers`, everything is correct."""

    def __init__(self, answers: Measured | None = None, *, devices: int = 1) -> None:
        super().__init__(devices=devices)
        self._answers = answers or (lambda problem, kernel: correct(2.0))
        self.sizes: list[Any] = []
        self.thorough: list[bool] = []
        self.more: list[bool] = []

    async def measure(
        self,
        device: int,
        problem: Problem,
        kernel: Kernel,
        archive: bytes,
        effort: Effort,
        more: bool,
        on_stage: OnStage,
    ) -> Evaluation:
        assert problem.case_of
        assert not problem.cases
        await super().measure(device, problem, kernel, archive, effort, more, on_stage)
        self.sizes.append(problem.overrides["n"])
        self.thorough.append(effort is Effort.THOROUGH)
        self.more.append(more)
        return self._answers(problem, kernel)

    async def compare(self, *arguments: Any) -> list[Evaluation]:
        problem, kernels = arguments[1], arguments[2]
        self.sizes.append(problem.overrides["n"])
        return [self._answers(problem, each) for each in kernels]


def evaluated(host: CasesHost, problem: Problem = MANY, **more: Any) -> Evaluation:
    async def evaluate() -> Evaluation:
        with Pool(host) as pool:
            return await pool.evaluate(problem, kernel(), **more)

    return asyncio.run(evaluate())


def test_a_kernel_is_built_once_and_judged_on_all_cases_and_on_others() -> None:
    host = CasesHost()
    found = evaluated(host, thorough=True)
    assert found.status is Status.CORRECT
    assert host.sizes[:3] == [33, 16, 100], "what is not timed comes first"
    assert len(host.sizes) == 5
    assert not {16, 100, 33} & {*host.sizes[3:]}
    assert host.thorough == [False, True, True, False, False]
    assert host.more == [False, False, False, True, False], "the two that were drawn are one load"
    assert host.built[kernel().id] == 1
    assert [(each.weight, each.held_out) for each in found.cases[:3]] == [(1, False), (3, False), (0, False)]
    assert all(each.held_out and not each.weight for each in found.cases[3:])
    assert found.environment == {}


def test_all_kernels_have_the_same_held_out_cases() -> None:
    host = CasesHost()

    async def evaluate() -> list[Evaluation]:
        with Pool(host) as pool:
            return [await pool.evaluate(MANY, kernel(name)) for name in "ab"]

    one, other = asyncio.run(evaluate())
    assert [each.name for each in one.cases] == [each.name for each in other.cases]


def test_code_for_the_listed_sizes_only_is_detected() -> None:
    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        wrong = Evaluation(status=Status.INCORRECT, log="wrong on fresh inputs")
        return correct(9.0) if problem.overrides["n"] in (16, 100, 33) else wrong

    found = evaluated(CasesHost(answers))
    assert found.status is Status.INCORRECT
    assert [each.passes for each in found.cases] == [True, True, True, False]


def test_the_first_kernels_have_their_verdicts_before_others_are_judged() -> None:
    """However many problems wait for the device."""
    problems = [replace(MANY, name=name, source=f"{MANY.source}\n# {name}") for name in ("a", "b", "c")]
    host, begun = CasesHost(), list[set[str]]()
    host.cores, host.work_s = 32, 0.001

    async def judge(pool: Pool, problem: Problem, number: int) -> None:
        await pool.evaluate(problem, kernel(f"{problem.name} {number}"))
        begun.append({name.partition(" ")[0] for _, name in host.order})

    async def all_of_them() -> None:
        with Pool(host) as pool:
            await asyncio.gather(*(judge(pool, each, number) for each in problems for number in range(2)))

    asyncio.run(all_of_them())
    assert begun == [{"a"}] * 2 + [{"a", "b"}] * 2 + [{"a", "b", "c"}] * 2


def test_after_a_failure_no_held_out_case_is_tried() -> None:
    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        failed = Evaluation(status=Status.RUNTIME_ERROR, log="ValueError: n")
        return failed if problem.overrides["n"] == 100 else correct(2.0)

    host = CasesHost(answers)
    assert evaluated(host).status is Status.RUNTIME_ERROR
    assert host.sizes == [33, 16, 100]


def test_cases_that_are_not_timed_are_one_load_on_one_device() -> None:
    host = CasesHost(devices=2)
    found = evaluated(host, LONG)
    assert found.status is Status.CORRECT
    assert host.sizes[:6] == [33, 40, 50, 60, 16, 100]
    assert host.more == [True, True, True, False, False, False, True, False]
    assert len({device for device, _ in host.order[:4]}) == len({device for device, _ in host.order[6:]}) == 1
    assert [each.name for each in found.cases[:6]] == [each.name for each in LONG.cases]


def test_a_wrong_case_ends_the_load_and_the_others_are_another() -> None:
    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        wrong = Evaluation(status=Status.INCORRECT, log="wrong on fresh inputs")
        return wrong if problem.overrides["n"] == 40 else correct(2.0)

    host = CasesHost(answers)
    found = evaluated(host, LONG)
    assert found.status is Status.INCORRECT
    assert host.sizes == [33, 40, 50, 60, 16, 100]
    assert host.more == [True, True, True, False, False, False]
    assert [each.name for each in found.cases if each.fails] == ["n=40"]


@pytest.mark.parametrize("lost", [WorkerBroken("the judge died"), WorkerDied("the node is gone")])
def test_verdicts_before_a_failure_of_ours_are_kept(lost: Exception) -> None:
    lasting = [lost]

    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        if problem.overrides["n"] == 50 and lasting:
            raise lasting.pop()
        return correct(2.0)

    host = CasesHost(answers)
    found = evaluated(host, LONG)
    assert found.status is Status.CORRECT, found.log
    assert host.sizes[:7] == [33, 40, 50, 50, 60, 16, 100]
    assert host.built[kernel().id] == 1
    assert [each.name for each in found.cases[:6]] == [each.name for each in LONG.cases]


def test_a_case_that_cannot_judge_amid_a_load_is_dropped() -> None:
    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        if problem.overrides["n"] == 40:
            raise UnfitProblem("zeros pass")
        return correct(2.0)

    host = CasesHost(answers)
    found = evaluated(host, droppable(LONG))
    assert found.status is Status.CORRECT
    assert host.sizes[:6] == [33, 40, 50, 60, 16, 100]
    assert [each.name for each in found.cases if not each.passes] == ["n=40"]


def test_after_a_case_without_an_answer_no_other_is_opened() -> None:
    """The first one was opened before, to learn about the device."""

    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        if problem.overrides["n"] == 40:
            raise UnansweredProblem("no answer within 300 s")
        return correct(2.0)

    host = CasesHost(answers)
    found = evaluated(host, droppable(LONG))
    assert host.sizes == [33, 40, 16]
    assert {each.name for each in found.cases if each.passes} == {"n=33", "n=16"}
    unfit = {each.name: each.evaluation.cause for each in found.cases if not each.passes}
    assert unfit.pop("n=40") == "no answer within 300 s"
    assert set(unfit.values()) == {"in another case no answer within 300 s"}


def test_a_drawn_case_with_an_unfit_reference_is_replaced() -> None:
    seen: list[Any] = []

    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        seen.append(problem.overrides["n"])
        if len(seen) == 4:
            raise UnfitProblem("it cannot judge")
        return correct(2.0)

    found = evaluated(CasesHost(answers))
    assert found.status is Status.CORRECT
    assert len(seen) == 6
    assert len(found.cases) == 5
    assert f"n={seen[3]}" not in {each.name for each in found.cases}


def test_a_drawn_case_that_another_kernel_finds_unfit_meanwhile_keeps_its_verdict() -> None:
    pools: list[Pool] = []
    sizes: list[Any] = []

    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        sizes.append(problem.overrides["n"])
        if len(sizes) == 5:
            drawn = pools[0]._on_cases._held_out[MANY.id]
            drawn.instead_of(drawn.cases[0])
        return correct(2.0)

    async def evaluate() -> Evaluation:
        with Pool(CasesHost(answers)) as pool:
            pools.append(pool)
            return await pool.evaluate(MANY, kernel())

    found = asyncio.run(evaluate())
    assert found.status is Status.CORRECT, found.log
    assert [each.name for each in found.cases[3:]] == [f"n={size}" for size in sizes[3:]]


def test_an_unfit_case_of_the_problem_is_the_verdict() -> None:
    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        if problem.overrides["n"] == 100:
            raise UnfitProblem("zeros pass")
        return correct(2.0)

    found = evaluated(CasesHost(answers))
    assert found.status is Status.UNFIT_REFERENCE
    assert found.log == "case n=100: zeros pass"


@pytest.mark.parametrize(
    ("unfit", "status"), [({16}, Status.CORRECT), ({33}, Status.CORRECT), ({16, 100}, Status.UNFIT_REFERENCE)]
)
def test_of_cases_that_can_be_dropped_the_others_judge(unfit: set[int], status: Status) -> None:
    class Opens(CasesHost):
        async def facts(self, device: int, problem: Problem) -> dict[str, str]:
            if problem.overrides["n"] in unfit:
                raise UnfitProblem("zeros pass")
            return await super().facts(device, problem)

    def answers(problem: Problem, kernel: Kernel) -> Evaluation:
        if problem.overrides["n"] in unfit:
            raise UnfitProblem("zeros pass")
        return correct(2.0)

    many = droppable(MANY)
    assert many.id == MANY.id

    async def evaluate(host: CasesHost) -> Evaluation:
        with Pool(host) as pool:
            return await pool.evaluate(many, kernel())

    found = asyncio.run(evaluate(Opens(answers)))
    assert found.status is status
    if status is Status.CORRECT:
        listed = [each.passes for each in found.cases if not each.held_out]
        assert listed == [n not in unfit for n in (16, 100, 33)]
        assert not any(each.fails for each in found.cases)
        assert found.speedup == pytest.approx(2.0)
    else:
        assert found.log == "case n=16: zeros pass"


def test_a_build_that_fails_is_the_verdict() -> None:
    host = CasesHost()
    host.building = [lambda: Build(seconds=0.5, status=Status.COMPILE_ERROR, log="no such header")]
    found = evaluated(host)
    assert (found.status, found.log, found.cases) == (Status.COMPILE_ERROR, "no such header", ())
    assert host.sizes == []


@pytest.mark.parametrize("slow", ["a", "b"])
def test_kernels_are_compared_on_the_cases_with_a_weight(slow: str) -> None:
    def answers(problem: Problem, made: Kernel) -> Evaluation:
        return correct(1.0 if made == kernel(slow) and problem.overrides["n"] == 100 else 4.0)

    host = CasesHost(answers)

    async def compare() -> list[Evaluation]:
        with Pool(host) as pool:
            return await pool.compare(MANY, [kernel("a"), kernel("b"), kernel("a")])

    one, other, again = asyncio.run(compare())
    assert host.sizes == [16, 100]
    assert one == again
    worse, better = (one, other) if slow == "a" else (other, one)
    assert better.speedup == pytest.approx(4.0)
    assert worse.speedup == pytest.approx(4.0 ** (1 / 4))
    assert len(worse.cases) == 2
