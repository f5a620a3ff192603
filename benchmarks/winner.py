"""Checks that the fastest kernel wins a search on a busy machine: ten kernels, two for each of five known
speeds.

    python benchmarks/winner.py [count=20] [busy=2] [device=auto]

Runs `count` searches of one round, each with the same ten kernels in another order, while `busy` processes
keep cores busy. A kernel computes a softmax one, two, three, five or eight times; the two of a speed differ
only in their source. For each search it prints how many times the winner computes the softmax, chosen by the
medians of the single evaluations, by the lower ends of their intervals, and after the leaders were compared
with each other, as a search does. The exit status is 0 when the last one is a copy of the fastest in 19 of 20
searches.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.app.command import build, choose_device, compose_config
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.pool import Pool
from search.engine.engine import Engine
from search.engine.session import Session
from search.protocols import KernelEvaluator, RunContext
from search.records.budget import Budget
from search.records.journal import JOURNAL, Journal
from search.records.ranking import MEDIAN, Ranking
from search.records.tree import Category, Expansion, Idea, Outcome, Seed, Variant, fastest
from search.strategies.idea_branching import IdeaBranching

TIMES = (1, 2, 3, 5, 8)
TO_REACH = 0.95
SPIN = "while True: pass"
SOURCE = '''"""The {copy} of two."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        for _ in range({times}):
            y = torch.softmax(x, dim=-1)
        return y
'''
KERNELS = {
    Kernel(source=SOURCE.format(times=times, copy=copy), language="triton"): times
    for times in TIMES
    for copy in ("first", "second")
}


@dataclass(frozen=True, kw_only=True)
class Try:
    """How many times the winner of a search computes the softmax, per rule; 0 where nothing was correct.
    `sessions`: comparisons of leaders."""

    median: int
    lower_end: int
    search: int
    sessions: int


class Known:
    """Proposes one idea with the ten kernels, in an order drawn from the search's seed."""

    def refusal(self, problem: Problem) -> str | None:
        """Never."""
        return None

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Always."""
        return True

    def begin(self, run: RunContext) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to close."""

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """The one idea."""
        text = "Compute it once."
        return [Idea(text=text, category=Category.COMPUTE, parent="", round=1, proposer="known")]

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """All ten kernels."""
        for kernel in rng.sample(list(KERNELS), n):
            yield kernel

    async def repair(self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random) -> None:
        """Never called."""


def main(arguments: list[str]) -> int:
    """Makes the searches one after the other on one device."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    count, busy = int(given.get("count", "20")), int(given.get("busy", "2"))
    device, _ = choose_device(given.get("device", "auto"), clustered=False)
    sizes = ["problem.sizes.batch=256", "problem.sizes.features=4096"] if device == "cpu" else []
    call = ["problem=level1/softmax", "kernel=none", "pool=local", "evaluator.compile_mode=", *sizes]
    config = compose_config(EvaluateConfig, call)
    problem: Problem = build(config.problem, device=device, libraries="any")
    evaluator = Pool(build(config.pool)(settings=build(config.evaluator), on_gpu=device == "cuda"))
    try:
        with occupied(busy):
            found = asyncio.run(searches(problem, evaluator, count))
    finally:
        evaluator.close()
    print(*summary(found, busy), sep="\n")
    return 0 if sum(each.search == TIMES[0] for each in found) >= TO_REACH * count else 1


async def searches(problem: Problem, evaluator: KernelEvaluator, count: int) -> list[Try]:
    """Runs `count` searches and prints the table."""
    print(f"{'search':>6}  {'median':>6}  {'lower end':>9}  {'winner':>6}  sessions", flush=True)
    found = []
    for number in range(count):
        found.append(await search(problem, evaluator, number))
        print(line(number + 1, found[-1]), flush=True)
    return found


@contextlib.contextmanager
def occupied(processes: int) -> Iterator[None]:
    """Keeps this number of processes busy within the block."""
    running = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


async def search(problem: Problem, evaluator: KernelEvaluator, seed: int) -> Try:
    """One search of all kernels."""
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / JOURNAL) as journal:
        session = Session(
            problem=problem,
            evaluator=evaluator,
            journal=journal,
            budget=Budget(rounds=1),
            confirm_s=0.0,
        )
        strategy = IdeaBranching(ideas=1, branch=len(KERNELS), keep=1)
        engine = Engine(session, strategy=strategy, proposer=Known(), seed=seed)
        finished = await engine.run()
    tree = engine.session.state.tree
    variants = tree.variants.values()
    by_median, by_lower_end = fastest(variants, 1, Ranking(MEDIAN)), fastest(variants, 1)
    return Try(
        median=times_of(by_median),
        lower_end=times_of(by_lower_end),
        search=times_of([finished.best] if finished.best else []),
        sessions=len(tree.ranking.comparisons),
    )


def times_of(best: Sequence[Variant]) -> int:
    """How many times the first variant computes the softmax; 0 if there is none."""
    return KERNELS[best[0].kernel] if best else 0


def line(number: int, found: Try) -> str:
    """A row of the table."""
    return f"{number:6}  {found.median:6}  {found.lower_end:9}  {found.search:6}  {found.sessions:8}"


def summary(found: Sequence[Try], busy: int) -> list[str]:
    """How often each rule found a copy of the fastest."""
    rules = {
        "the largest median": [each.median for each in found],
        "the largest lower end": [each.lower_end for each in found],
        "the search": [each.search for each in found],
    }
    return [
        f"with {busy} busy processes, {rule} found a copy of the fastest in {winners.count(TIMES[0])} of "
        f"{len(winners)}"
        for rule, winners in rules.items()
    ]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"winner.py: {error}")
