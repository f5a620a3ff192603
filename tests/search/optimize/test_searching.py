"""Kernels for a model's problems: trying the library, and how a campaign spends its budget."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import timing_of
from evaluators.reference.loading import load_problem
from evaluators.scheduler.pool import Pool
from kernel_library.catalogue.library import FolderLibrary
from search.campaign.slices import SearchProgress, Slice
from search.optimize.extraction.problems import extract
from search.optimize.searching import (
    AcceptedKernel,
    LibraryAnswers,
    ModelRules,
    SavedTime,
    accepted_kernel,
    fastest_kernels,
)
from tests.search.optimize.example_models import rand
from tests.search.optimize.extraction.test_problems import profile_of
from tests.search.optimize.extraction.traced_models import at_shapes, traced

KERNEL = Kernel(source="x = 1", language="cpp")


def correct(speedup: float) -> Evaluation:
    return Evaluation(status=Status.CORRECT, timing=timing_of([1.0] * 20, [speedup] * 20))


def search(name: str, ms: float, *speedups: float, **fields: Any) -> SearchProgress:
    slices = [Slice(evaluations=10, speedup=each) for each in speedups]
    return SearchProgress(problem=name, arm="search", weight=ms, slices=slices, **fields)


def test_a_kernel_is_accepted_when_significantly_faster() -> None:
    assert accepted_kernel(KERNEL, correct(2.0), "search") is not None
    assert accepted_kernel(KERNEL, correct(1.01), "search") is None, "its interval contains 1"
    assert accepted_kernel(KERNEL, Evaluation(status=Status.INCORRECT), "search") is None
    assert accepted_kernel(KERNEL, None, "search") is None


def test_the_lower_end_decides_between_two() -> None:
    sure = AcceptedKernel(kernel=KERNEL, speedup=2.0, low=1.9, high=2.1, origin="search")
    lucky = AcceptedKernel(kernel=KERNEL, speedup=3.0, low=1.1, high=9.0, origin="library softmax/cpp")
    assert fastest_kernels({"a": [None, lucky, sure], "b": [None]}) == {"a": sure}


def test_the_budget_goes_where_the_model_gains_most() -> None:
    scheduler = SavedTime()
    long, short = search("long", 10.0), search("short", 1.0)
    assert scheduler.choose([short, long], {}) is long
    done = search("long", 10.0, 20.0, ceiling=21.0)
    assert scheduler.choose([short, done], {}) is short, "after its kernel it takes half a ms"
    assert scheduler.choose([short, done], {short.key: 10}) is done
    assert scheduler.choose([], {}) is None
    assert SavedTime().expected(search("x", 4.0, ceiling=1.0)) == 0, "it is at its roofline"


def test_a_kernel_that_is_slower_than_eager_saves_nothing() -> None:
    hopeless, near, faster = (
        search(name, 10.0, speedup) for name, speedup in (("a", 0.12), ("b", 0.6), ("c", 1.5))
    )
    expected = SavedTime().expected
    assert expected(hopeless) == 0 and 0 < expected(near) < expected(search("b", 10.0, 0.9))
    assert expected(faster) == pytest.approx(10 * SavedTime().gain(faster) / 1.5)
    assert SavedTime().choose([hopeless], {}) is hopeless, "where nothing else is left"


def test_a_search_ends_when_the_model_cannot_gain_more() -> None:
    rules = ModelRules(total_ms=100.0, model_gain=0.01)
    assert rules.why(search("x", 10.0, 1.0, ceiling=4.0)) == ""
    why = rules.why(search("x", 10.0, 3.5, ceiling=4.0))
    assert why == "at most 0.4% of the model's time could still be saved here"
    assert rules.why(search("x", 10.0, 1.0)) == "", "the roofline is not known"
    assert rules.why(search("x", 10.0, 3.9, ceiling=4.0)).endswith("of the roofline")


class StubPool:
    """Judges every kernel as twice as fast, and counts."""

    def __init__(self) -> None:
        self.evaluated: list[Kernel] = []
        self.opened: list[str] = []

    async def describe(self, problem: Problem) -> dict[str, str]:
        self.opened.append(problem.name)
        return {"device": "cpu"}

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation:
        self.evaluated.append(kernel)
        return correct(2.0)


@pytest.mark.slow
def test_the_library_is_asked_once(tmp_path: Path) -> None:
    made = traced(lambda x: torch.softmax(x, -1), rand(4, 8))
    found = extract(profile_of(made), [made], tmp_path, most=1, gain=0.001)
    problem = load_problem("file", path=str(tmp_path / found.problems[0].file))
    said: list[str] = []
    pool = StubPool()
    for _ in range(2):
        answers = LibraryAnswers(tmp_path, FolderLibrary(str(tmp_path / "library")), [made], said.append)
        best = asyncio.run(answers.ask(cast(Pool, pool), found.problems[0], problem))
        assert best is not None and best.origin == "library softmax/cpp"
    assert len(pool.evaluated) == 1, "the second time it is known"
    assert said == ["1_softmax: library kernel softmax/cpp: 2.00x"] * 2


@pytest.mark.slow
def test_a_problem_for_which_the_library_has_nothing_is_not_opened(tmp_path: Path) -> None:
    made = traced(lambda x: torch.softmax(x.cumsum(0), -1).cumsum(0), rand(64, 64))
    found = extract(profile_of(made), [made], tmp_path, most=4, gain=0.0)
    answers = LibraryAnswers(tmp_path, FolderLibrary(str(tmp_path / "library")), [made], lambda line: None)
    pool = StubPool()

    async def ask() -> list[AcceptedKernel | None]:
        pairs = [(each, load_problem("file", path=str(tmp_path / each.file))) for each in found.problems]
        return [await answers.ask(cast(Pool, pool), *pair) for pair in pairs]

    best = asyncio.run(ask())
    without = [each.name for each, one in zip(found.problems, best, strict=True) if one is None]
    assert without and len(without) < len(best)
    opened = [Path(name).stem for name in pool.opened[1:]]  # the first call asks for the device
    assert opened and not set(opened) & set(without)


@pytest.mark.slow
def test_the_librarys_kernel_is_adapted_to_all_shapes(tmp_path: Path) -> None:
    made = at_shapes(
        lambda x, y: torch.mm(x.view(2 * x.shape[0], 4), y),
        (rand(4, 8), rand(4, 3)),
        (rand(6, 8), rand(4, 3)),
    )
    found = extract(profile_of(*made), made, tmp_path, most=1, gain=0.001)
    problem = load_problem("file", path=str(tmp_path / found.problems[0].file))
    answers = LibraryAnswers(tmp_path, FolderLibrary(str(tmp_path / "library")), made, lambda line: None)
    pool = StubPool()
    assert asyncio.run(answers.ask(cast(Pool, pool), found.problems[0], problem)) is not None
    assert [dict(case.sizes)["X"] for case in problem.cases] == [(4, 8), (6, 8)]
    assert ["reshape([-1, 4])" in each.source for each in pool.evaluated] == [True]


def test_a_problem_that_cannot_be_judged_is_reported(tmp_path: Path) -> None:
    from evaluators.device.child_processes import UnfitProblem

    class Unfit(StubPool):
        async def describe(self, problem: Problem) -> dict[str, str]:
            raise UnfitProblem("zeros pass")

    made = traced(lambda x: torch.softmax(x, -1), rand(4, 8))
    found = extract(profile_of(made), [made], tmp_path, most=1, gain=0.001)
    problem = load_problem("file", path=str(tmp_path / found.problems[0].file))
    said: list[str] = []
    answers = LibraryAnswers(tmp_path, FolderLibrary(str(tmp_path / "library")), [made], said.append)
    assert asyncio.run(answers.ask(cast(Pool, Unfit()), found.problems[0], problem)) is None
    assert said == ["1_softmax: zeros pass"]
