"""Measures the overhead of the engine and the journal: 10,000 variants with a proposer and an evaluator that
answer immediately.

    python benchmarks/engine_overhead.py [--rounds 50] [--ideas 25] [--branch 8] [--source-bytes 4096]

Prints variants per second, peak memory, and the time to reopen the journal. The exit status is 1 when one of
them misses its goal. Everything runs in this process on one core, with the journal in a temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.records.evaluation import Correctness, Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem
from search.engine.engine import Engine
from search.engine.session import Session
from search.protocols import RunContext
from search.records.budget import Budget
from search.records.journal import JOURNAL, Journal
from search.records.run_state import rebuild
from search.records.tree import Category, Expansion, Idea, Outcome, Seed, Variant
from search.strategies.idea_branching import IdeaBranching

MIN_VARIANTS_PER_S = 200.0
MAX_PEAK_GB = 1.0
MAX_REOPENING_S = 5.0


class InstantProposer:
    """Proposes different ideas and kernels of a realistic length."""

    def __init__(self, source_bytes: int) -> None:
        self._filler = "# filler\n" * (source_bytes // 9)

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

    async def repair(self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random) -> None:
        """Never called."""

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """Each idea was shown all earlier ones, as with a model that sees the whole history."""
        known = tuple(outcome.idea.id for outcome in history)
        parent = expansion.seed.id if expansion.seed else ""
        texts = [
            f"Idea {rng.random()}: keep the tile in registers across the loop."
            for _ in range(expansion.ideas)
        ]
        return [
            Idea(
                text=text,
                category=Category.MEMORY,
                parent=parent,
                round=expansion.round,
                proposer="instant",
                known_ideas=known,
            )
            for text in texts
        ]

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """Kernels that differ in one comment."""
        for _ in range(n):
            yield Kernel(source=f"class ModelNew: ...  # {rng.random()}\n{self._filler}", language="triton")


class InstantEvaluator:
    """Two of three are correct, with 16 samples each for kernel and baseline."""

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """The verdict depends on the kernel's id."""
        value = int(kernel.id, 16)
        figures = Correctness(checked_calls=5, normwise_error=1e-6, eager_error=2e-6)
        if value % 3 == 0:
            return Evaluation(
                status=Status.INCORRECT, correctness=figures, log="mismatch at [0, 0]: 1 != 2\n" * 20
            )
        speedup = 0.5 + value % 1000 / 500
        timing = Timing(
            kernel_ms=1 / speedup,
            eager_ms=1.0,
            speedup=speedup,
            speedup_low=speedup * 0.99,
            speedup_high=speedup * 1.01,
            kernel_samples_ms=tuple(1 / speedup + i / 1e4 for i in range(16)),
            eager_samples_ms=tuple(1 + i / 1e4 for i in range(16)),
        )
        return Evaluation(status=Status.CORRECT, timing=timing, correctness=figures, device_s=0.5)

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """The same verdicts, as if measured together."""
        return [await self.evaluate(problem, kernel) for kernel in kernels]


def search(path: Path, rounds: int, ideas: int, branch: int, source_bytes: int) -> float:
    """The seconds of a whole search."""
    began = time.perf_counter()
    with Journal(path) as journal:
        session = Session(
            problem=Problem(name="nothing", source="class Model: ..."),
            evaluator=InstantEvaluator(),
            journal=journal,
            budget=Budget(rounds=rounds),
        )
        strategy = IdeaBranching(ideas=ideas, branch=branch, keep=4)
        engine = Engine(session, strategy=strategy, proposer=InstantProposer(source_bytes))
        asyncio.run(engine.run())
    return time.perf_counter() - began


def reopen(path: Path) -> tuple[float, int]:
    """Seconds until a resumed search can continue, and the number of variants that it finds."""
    began = time.perf_counter()
    with Journal(path) as journal:
        found = len(rebuild(journal.past).tree.variants)
    return time.perf_counter() - began, found


def main() -> int:
    """Runs the benchmark; 0 when every goal is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("rounds", 50), ("ideas", 25), ("branch", 8), ("source-bytes", 4096)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    variants = args.rounds * args.ideas * args.branch
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / JOURNAL
        took_s = search(path, args.rounds, args.ideas, args.branch, args.source_bytes)
        reopening_s, found = reopen(path)
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        journal_mb = path.stat().st_size / 1e6
    rate = variants / took_s
    goals = {
        f"{rate:8.0f} variants/s (goal: at least {MIN_VARIANTS_PER_S:.0f})": rate >= MIN_VARIANTS_PER_S,
        f"{peak_gb:8.2f} GB peak memory (goal: below {MAX_PEAK_GB:.0f})": peak_gb < MAX_PEAK_GB,
        f"{reopening_s:8.2f} s to reopen (goal: below {MAX_REOPENING_S:.0f})": reopening_s < MAX_REOPENING_S,
        f"{found:8d} variants found again (of {variants})": found == variants,
    }
    print(f"{variants} variants in {took_s:.1f} s; the journal has {journal_mb:.0f} MB")
    for line, met in goals.items():
        print(f"{'ok    ' if met else 'MISSED'} {line}")
    return 0 if all(goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
