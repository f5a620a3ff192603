"""The synthetic landscape: its optimum is one, equal seeds give equal truths, failures come at their rate."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.app.command import compose_config
from evaluators.records.evaluation import Status
from evaluators.reference.loading import load_problem
from search.proposers.landscape import (
    LandscapeProposer,
    contents,
    kernel_of,
    landscape_problem,
    moves_of,
)
from search.records.tree import Expansion, Idea, Seed
from search.run.config import RunConfig
from search.strategies.idea_branching import IdeaBranching
from tests.search.fakes import search, state_of

SHIPPED = compose_config(RunConfig, ["problem=landscape", "proposer=landscape"]).proposer
PROBLEM = landscape_problem()


def proposer(**changes: Any) -> LandscapeProposer:
    settings = {key: value for key, value in SHIPPED.items() if key != "_target_"}
    return LandscapeProposer(**{**settings, **changes})


async def written(of: LandscapeProposer, idea: Idea, n: int, parent: Seed | None = None) -> list[Any]:
    return [kernel async for kernel in of.implement(PROBLEM, idea, parent, n, [], random.Random(1))]


@pytest.mark.slow
def test_no_search_finds_more_than_the_optimum(tmp_path: Path) -> None:
    for seed in range(3):
        found = proposer(seed=seed, noise=0.0, measurement=0.0)
        path = tmp_path / f"{seed}.jsonl"
        strategy = IdeaBranching(ideas=4, branch=1, keep=2)
        search(path, problem=PROBLEM, strategy=strategy, proposer=found, evaluator=found.evaluator, rounds=8)
        (best,) = state_of(path).tree.best(1)
        assert best.evaluation is not None
        assert 0.5 < best.evaluation.speedup <= found.landscape.optimum * 1.0001


def test_equal_seeds_are_one_landscape() -> None:
    one, same, other = proposer(seed=1), proposer(seed=1), proposer(seed=2)
    assert one.landscape.worth == same.landscape.worth != other.landscape.worth
    kernel = kernel_of([0, 3], 0.1, None)
    verdicts = [asyncio.run(each.evaluator.evaluate(PROBLEM, kernel)) for each in (one, same)]
    assert verdicts[0] == verdicts[1]


def test_an_idea_adds_a_move_to_its_parents() -> None:
    found, rng = proposer(), random.Random(0)
    (idea,) = asyncio.run(found.propose(PROBLEM, Expansion(seed=None, ideas=1, variants=1, round=1), [], rng))
    (kernel,) = asyncio.run(written(found, idea, 1))
    assert contents(kernel)["moves"] == json.loads(idea.plan)
    every = asyncio.run(found.propose(PROBLEM, Expansion(seed=None, ideas=99, variants=1, round=1), [], rng))
    assert len({each.plan for each in every}) == len(every) == 99
    assert moves_of(None) == frozenset()


@pytest.mark.parametrize("undoing", [0.0, 0.5])
def test_an_idea_may_take_moves_away(undoing: float) -> None:
    found, rng = proposer(undoing=undoing), random.Random(0)
    seed = Seed(id="x", kernel=kernel_of(range(8), 0.0, None))
    expansion = Expansion(seed=seed, ideas=40, variants=1, round=1)
    ideas = asyncio.run(found.propose(PROBLEM, expansion, [], rng))
    taken = [idea for idea in ideas if set(json.loads(idea.plan)) & set(range(8))]
    assert bool(taken) == bool(undoing)
    for idea in taken:
        assert "take away" in idea.text.lower()
        (kernel,) = asyncio.run(written(found, idea, 1, seed))
        assert set(contents(kernel)["moves"]) == set(range(8)) ^ set(json.loads(idea.plan))
    whole = replace(expansion, seed=Seed(id="y", kernel=kernel_of(range(16), 0.0, None)))
    assert bool(asyncio.run(found.propose(PROBLEM, whole, [], rng))) == bool(undoing)


@pytest.mark.slow
def test_variants_fail_at_their_rate() -> None:
    idea = Idea(text="Move 1.", category="memory access", parent="", round=1, proposer="x", plan="[1]")  # type: ignore[arg-type]
    kernels = asyncio.run(written(proposer(failures=0.25), idea, 2000))
    verdicts = [asyncio.run(proposer().evaluator.evaluate(PROBLEM, each)) for each in kernels]
    assert 0.22 < sum(each.status is not Status.CORRECT for each in verdicts) / 2000 < 0.28


@pytest.mark.slow
def test_a_thorough_measurement_has_less_noise() -> None:
    evaluator = proposer(measurement=0.1).evaluator
    errors: dict[bool, list[float]] = {False: [], True: []}
    for number in range(300):
        kernel = kernel_of([number % 12], number / 1e6, None)
        for thorough, found in errors.items():
            verdict = asyncio.run(evaluator.evaluate(PROBLEM, kernel, thorough=thorough))
            found.append((verdict.speedup / evaluator.true_speedup(kernel) - 1) ** 2)
    assert sum(errors[True]) < sum(errors[False]) / 8


def test_it_goes_with_its_problem_alone() -> None:
    assert proposer().refusal(PROBLEM) is None
    softmax = load_problem("level1/softmax", sizes={"batch": 2})
    assert proposer().refusal(softmax) == "proposer=landscape only works with problem=landscape"


@pytest.mark.parametrize(
    ("setting", "value"), [("moves", 0), ("moves", 17), ("failures", 1.5), ("noise", -1), ("insight", -0.1)]
)
def test_what_cannot_be_is_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"landscape.{setting} is {value}"):
        proposer(**{setting: value})
