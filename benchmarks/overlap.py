"""Measures how much of the GPU's work overlaps with models that are still writing, compared with engines that
wait for a batch.

    python benchmarks/overlap.py [--rounds 4] [--ideas 8] [--branch 8] [--scale 0.02]

The engine and the proposer are the real ones. The model takes a log-normal time (median 40 s, a tenth over
two minutes), and the evaluator simulates sixteen build cores (12 s per kernel) and a GPU (2 s), all sped up
by `scale`. `kernel by kernel` is how the engine works; `idea by idea` waits until all variants of an idea are
written, `round by round` until all of a round's are.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem
from search.engine.engine import Engine
from search.engine.session import Session
from search.proposers.llm.proposer import LLMProposer
from search.records.budget import Budget
from search.records.journal import JOURNAL, Journal
from search.records.model_calls import Answer, Limits, Price, Purpose, Question, Usage
from search.records.tree import Idea, Seed
from search.strategies.idea_branching import IdeaBranching

CORES, BUILD_S, GPU_S = 16, 12.0, 2.0
MEDIAN_S, SPREAD = 40.0, 0.86

Interval = tuple[float, float]


class SlowModel:
    """A model that answers something new after a delay."""

    name = "slow/model"
    price = Price(input=0.0, output=0.0)
    limits = Limits(concurrency=64)

    def __init__(self, scale: float) -> None:
        self._scale, self._rng = scale, random.Random(0)
        self.busy: list[Interval] = []

    def refusal(self) -> str | None:
        """Never."""
        return None

    def begin(self, folder: Path) -> None:
        """Nothing to prepare."""

    async def complete(self, question: Question) -> Answer:
        """New ideas or a new kernel."""
        start = time.monotonic()
        number = self._rng.random()
        await asyncio.sleep(MEDIAN_S * self._rng.lognormvariate(0.0, SPREAD) * self._scale)
        self.busy.append((start, time.monotonic()))
        if question.purpose is not Purpose.IDEAS:
            return Answer(text=f"```python\nclass ModelNew: ...  # {number}\n```", usage=Usage())
        assert question.schema is not None
        (seed,) = question.schema["properties"]["ideas"]["items"]["properties"]["seed"]["enum"]
        rest = f'"category": "memory access", "expected_effect": "", "seed": "{seed}", "library_entry": ""'
        ideas = ", ".join(f'{{"text": "{number} {i}", {rest}}}' for i in range(8))
        return Answer(text=f'{{"ideas": [{ideas}]}}', usage=Usage())

    async def close(self) -> None:
        """Nothing to close."""


class SlowEvaluator:
    """Builds on cores, then measures on the GPU."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._cores, self._gpu = asyncio.Semaphore(CORES), asyncio.Semaphore(1)
        self.busy: list[Interval] = []

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """Every kernel is correct, each a little faster or slower than the others."""
        async with self._cores:
            await asyncio.sleep(BUILD_S * self._scale)
        async with self._gpu:
            start = time.monotonic()
            await asyncio.sleep(GPU_S * self._scale)
            self.busy.append((start, time.monotonic()))
        speedup = 1.0 + int(kernel.id, 16) % 97 / 97
        timing = Timing(
            kernel_ms=1.0, eager_ms=speedup, speedup=speedup, speedup_low=speedup, speedup_high=speedup
        )
        return Evaluation(status=Status.CORRECT, timing=timing)

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """The same verdicts, one after the other."""
        return [await self.evaluate(problem, kernel) for kernel in kernels]


class Batches(LLMProposer):
    """Holds kernels back until all of an idea's, or of a round's, are written."""

    def __init__(self, *arguments: Any, whole_round: int = 0, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._ideas_a_round = whole_round
        self._barriers: dict[int, asyncio.Barrier] = {}

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """See `Proposer`."""
        kernels = [each async for each in super().implement(problem, idea, parent, n, written, rng)]
        if self._ideas_a_round:
            await self._barriers.setdefault(idea.round, asyncio.Barrier(self._ideas_a_round)).wait()
        for kernel in kernels:
            yield kernel


def covered(intervals: Sequence[Interval], by: Sequence[Interval]) -> float:
    """The share of the intervals' time that overlaps with the others."""
    marks = [(s, 1, 0) for s, _ in by] + [(e, -1, 0) for _, e in by]
    marks += [(s, 0, 1) for s, _ in intervals] + [(e, 0, -1) for _, e in intervals]
    inside = outer = 0
    last = hidden = total = 0.0
    for at, change, mine in sorted(marks):
        if inside:
            total += (at - last) * inside
            hidden += (at - last) * inside if outer else 0.0
        outer, inside, last = outer + change, inside + mine, at
    return hidden / total


def run(proposer_of: Callable[[SlowModel], LLMProposer], options: argparse.Namespace) -> tuple[float, float]:
    """The share of GPU work that was overlapped, and the search's unscaled seconds."""
    model = SlowModel(options.scale)

    async def search(folder: Path) -> tuple[float, SlowEvaluator]:
        evaluator = SlowEvaluator(options.scale)
        with Journal(folder / JOURNAL) as journal:
            session = Session(
                problem=Problem(name="level1/slow", source="class Model: ..."),
                evaluator=evaluator,
                journal=journal,
                budget=Budget(rounds=options.rounds),
                outstanding=4 * (CORES + 1),
            )
            strategy = IdeaBranching(ideas=options.ideas, branch=options.branch, keep=1)
            engine = Engine(session, strategy=strategy, proposer=proposer_of(model))
            start = time.monotonic()
            await engine.run()
            return (time.monotonic() - start) / options.scale, evaluator

    with tempfile.TemporaryDirectory() as folder:
        seconds, evaluator = asyncio.run(search(Path(folder)))
    return covered(evaluator.busy, model.busy), seconds


def main() -> None:
    """Prints a line per way of working."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ideas", type=int, default=8)
    parser.add_argument("--branch", type=int, default=8)
    parser.add_argument("--scale", type=float, default=0.02)
    options = parser.parse_args()
    ways: dict[str, Callable[[SlowModel], LLMProposer]] = {
        "round by round": lambda model: Batches({"slow": model}, whole_round=options.ideas),
        "idea by idea": lambda model: Batches({"slow": model}),
        "kernel by kernel": lambda model: LLMProposer({"slow": model}),
    }
    count = options.rounds * options.ideas * options.branch
    print(f"{count} kernels in {options.rounds} rounds, {options.ideas * options.branch} calls at a time")
    print(f"{'':18} {'GPU overlapped':>16} {'search':>10}")
    for name, proposer_of in ways.items():
        hidden, seconds = run(proposer_of, options)
        print(f"{name:18} {hidden:16.0%} {seconds:8.0f} s")


if __name__ == "__main__":
    main()
