"""Winners in configurations that no search saw, and next to a rival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Case, Kernel, Problem
from search.compare.curves import Point, Searched
from search.run.winner_checks import (
    HeldOutResult,
    beside,
    held_out_speedup,
    held_out_summary,
    on_held_out,
    only_listed,
)

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


rows, columns = 64, 32
columns = 2 * columns
flag = True


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
"""
KERNEL = Kernel(source="class ModelNew: pass", language="cpp")


class Judge:
    """Gives the verdict of a function of the problem."""

    def __init__(self, verdict: Callable[[Problem], Evaluation]) -> None:
        self.verdict, self.asked = verdict, list[Problem]()

    async def evaluate(self, problem: Problem, kernel: Kernel, **_: Any) -> Evaluation:
        self.asked.append(problem)
        return self.verdict(problem)

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        return [timed([1.0, 1.1, 1.0] * 5), timed([2.0, 2.2, 2.0] * 5)]


def timed(samples_ms: Sequence[float]) -> Evaluation:
    timing = Timing(
        kernel_ms=samples_ms[0],
        eager_ms=2.0,
        speedup=2.0,
        speedup_low=1.9,
        speedup_high=2.1,
        kernel_samples_ms=tuple(samples_ms),
    )
    return Evaluation(status=Status.CORRECT, timing=timing)


def judged(verdict: Callable[[Problem], Evaluation], problem: Problem, count: int = 4) -> Any:
    judge: Any = Judge(verdict)
    results = asyncio.run(on_held_out(judge, problem, KERNEL, count=count, seed=1))
    return judge.asked, results


def test_a_problem_without_cases_gets_other_sizes_and_another_type() -> None:
    problem = Problem(name="a", source=SOURCE)
    asked, results = judged(lambda _: timed([1.0]), problem)
    assert len(results) == 5
    sizes = [(each.overrides.get("rows", 64), each.overrides.get("columns", 64)) for each in asked[:4]]
    assert len({*sizes} - {(64, 64)}) == 4
    assert all(1 <= size <= 67 for pair in sizes for size in pair)
    assert not any("flag" in each.overrides for each in asked)
    assert [each.dtype for each in asked] == [*["float32"] * 4, "bfloat16"]
    assert held_out_speedup(results) == pytest.approx(2.0)
    assert only_listed(results) == ""
    again, _ = judged(lambda _: timed([1.0]), problem)
    assert [each.name for each in again] == [each.name for each in asked]


def test_a_reference_that_keeps_its_types_gets_no_other() -> None:
    asked, _ = judged(lambda _: timed([1.0]), Problem(name="a", source=f"KEEPS_TYPES = True\n{SOURCE}"))
    assert {each.dtype for each in asked} == {"float32"}


def test_cases_are_drawn_from_between_the_problem_s_own() -> None:
    cases = (Case(sizes={"rows": 8}), Case(sizes={"rows": 64}), Case(sizes={"rows": 16}, dtype="bfloat16"))
    asked, results = judged(lambda _: timed([1.0]), Problem(name="a", source=SOURCE, cases=cases))
    assert not {each.name for each in results} & {each.name for each in cases}
    assert asked[-1].dtype == "float16"
    assert all(each.timed for each in asked)


def test_what_a_reference_cannot_judge_is_drawn_again() -> None:
    def verdict(problem: Problem) -> Evaluation:
        odd = problem.overrides.get("rows", 64) % 2  # type: ignore[operator]
        return Evaluation(status=Status.UNFIT_REFERENCE, log="no") if odd else timed([1.0])

    asked, results = judged(verdict, Problem(name="a", source=SOURCE), count=2)
    assert 1 <= len(results) <= 3
    assert len(asked) <= 9
    _, nothing = judged(lambda _: Evaluation(status=Status.UNFIT_REFERENCE), Problem(name="a", source=SOURCE))
    assert nothing == ()


def test_a_kernel_that_knows_the_listed_shapes_only_is_named() -> None:
    def verdict(problem: Problem) -> Evaluation:
        if problem.dtype == "bfloat16":
            return Evaluation(status=Status.DECLINED)
        return Evaluation(status=Status.INCORRECT, log="wrong shape")

    _, results = judged(verdict, Problem(name="a", source=SOURCE), count=1)
    assert [each.speedup for each in results] == [0.0, 1.0]
    assert only_listed(results).startswith("right on 1 of 2 held-out configurations; ")
    assert only_listed(results).endswith("incorrect, wrong shape")
    assert held_out_speedup([HeldOutResult(name="x", status="incorrect", speedup=0.0)]) is None


def test_a_winner_is_timed_beside_a_rival() -> None:
    judge: Any = Judge(lambda _: timed([1.0]))
    rival = Kernel(source="class ModelNew: 'rival'", language="cpp")
    found = asyncio.run(beside(judge, Problem(name="a", source=SOURCE), KERNEL, rival))
    assert found is not None
    assert found.speedup == pytest.approx(2.0)
    assert asyncio.run(beside(judge, Problem(name="a", source=SOURCE), KERNEL, KERNEL)) is None


def test_arms_are_summed_up_over_their_winners() -> None:
    def result(final: float, *speedups: float) -> Searched:
        held_out = tuple(
            HeldOutResult(name=str(n), status="correct" if each else "incorrect", speedup=each)
            for n, each in enumerate(speedups)
        )
        return Searched(
            problem="a", arm="b", seed=0, reason="", final=final, points=(Point(),), held_out=held_out
        )

    found = held_out_summary([result(8.0, 2.0, 8.0), result(2.0, 1.0, 0.0), result(3.0, 0.0), result(9.0)])
    assert found is not None
    assert (found.winners, found.pass_all) == (3, 1)
    assert found.listed.value == pytest.approx(4.0)
    assert found.held_out.value == pytest.approx(2.0)
    assert held_out_summary([result(9.0)]) is None
    again = Searched.from_json(result(8.0, 2.0, 0.0).to_json())
    assert again.held_out == result(8.0, 2.0, 0.0).held_out
