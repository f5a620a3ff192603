"""A synthetic landscape: kernels of known speed, ideas with a hidden worth, noisy variants, and a failure
rate. Thousands of searches take minutes and cost nothing. Strategies are tuned here and confirmed on real
kernels.

A kernel is a set of *moves*. Each move has a worth: a gain in the logarithm of the speed, which applies once
the move that it needs is present. Some pairs of moves clash. An idea adds moves to its parent's, removes
some, or replaces one by another. A kernel's speed is that of its moves times the quality of the
implementation, half of which it inherits.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import Threshold, after_quick_stage, reaches
from search.protocols import RunContext
from search.records.tree import Category, Expansion, Idea, Outcome, Seed, Variant

MOVES_AT_MOST = 16
"""With this many moves, all combinations can still be tried to find the optimum."""
EAGER_MS = 1.0
MORE = 0.3
"""The probability that an idea changes one more move."""
TRIES = 50
"""Draws per idea, because a drawn idea may have been tried before."""
START = 0.5
"""The speedup of a plain first kernel."""
FAILURES = (Status.COMPILE_ERROR, Status.INCORRECT, Status.RUNTIME_ERROR)


def landscape_problem(name: str = "landscape", path: None = None, device: str = "cpu") -> Problem:
    """The problem of a landscape search; there is nothing to run."""
    source = "# A synthetic landscape: see search/proposers/landscape.py.\n"
    return Problem(name=name, source=source, device=device)


class Landscape:
    """The hidden truth, drawn from a seed. `mean` and `spread` are the mean and standard deviation of the
    moves' worths; a share `needy` of the moves needs another move, and a share `clashing` of the pairs
    clash."""

    def __init__(
        self, seed: int, *, moves: int, mean: float, spread: float, needy: float, clashing: float
    ) -> None:
        if not 1 <= moves <= MOVES_AT_MOST:
            raise ValueError(f"landscape.moves is {moves}; it must be between 1 and {MOVES_AT_MOST}")
        rng = random.Random(f"landscape/{seed}")
        self.moves = range(moves)
        self.worth = [rng.gauss(mean, spread) for _ in self.moves]
        self.category = [rng.choice(list(Category)) for _ in self.moves]
        self.needs = [
            rng.choice([*range(number)]) if number and rng.random() < needy else None for number in self.moves
        ]
        self.clashes = {pair for pair in itertools.combinations(self.moves, 2) if rng.random() < clashing}

    def gain(self, moves: frozenset[int]) -> float:
        """The change that these moves make to the logarithm of the speed."""
        gains = (self._worth_among(each, moves) for each in moves)
        clashing = sum(pair[0] in moves and pair[1] in moves for pair in self.clashes)
        return sum(gains) - 0.2 * clashing

    def _worth_among(self, move: int, moves: frozenset[int]) -> float:
        need = self.needs[move]
        return self.worth[move] if need is None or need in moves else -abs(self.worth[move]) / 2

    @cached_property
    def optimum(self) -> float:
        """The speedup of the best set of moves, implemented with average quality."""
        sets = itertools.chain.from_iterable(
            itertools.combinations(self.moves, size) for size in range(len(self.moves) + 1)
        )
        return START * math.exp(max(self.gain(frozenset(each)) for each in sets))


class LandscapeProposer:
    """Draws moves to add, and moves of the seed to remove: a move of the seed is `undoing` times as likely as
    one that it lacks. `insight`, from 0 to 1, is how much the choice follows the hidden worths. `noise` and
    `measurement` are the standard deviations of an implementation's quality and of a measured time, in the
    logarithm; `failures` is the share of variants that fail. Raises ValueError for a value out of its
    range."""

    def __init__(
        self,
        *,
        seed: int,
        moves: int,
        mean: float,
        spread: float,
        needy: float,
        clashing: float,
        insight: float,
        undoing: float,
        noise: float,
        measurement: float,
        failures: float,
    ) -> None:
        shares = {"needy": needy, "clashing": clashing, "insight": insight, "failures": failures}
        shares["undoing"] = undoing
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ValueError(f"landscape.{name} is {share}; it must be between 0 and 1")
        for name, value in {"spread": spread, "noise": noise, "measurement": measurement}.items():
            if not value >= 0:
                raise ValueError(f"landscape.{name} is {value}; it must not be negative")
        self.landscape = Landscape(
            seed, moves=moves, mean=mean, spread=spread, needy=needy, clashing=clashing
        )
        self._insight, self._undoing, self._noise, self._failures = insight, undoing, noise, failures
        self.evaluator = LandscapeEvaluator(self.landscape, seed=seed, measurement=measurement)
        """Gives the verdicts on its kernels."""
        self.entries: tuple[Seed, ...] = ()

    def refusal(self, problem: Problem) -> str | None:
        """Refuses any other problem."""
        return None if problem.name == "landscape" else "proposer=landscape only works with problem=landscape"

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Accepts every kernel."""
        return True

    def begin(self, run: RunContext) -> None:
        """Does nothing; part of the protocol."""

    async def close(self) -> None:
        """Does nothing; part of the protocol."""

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """Changes of the seed's moves, mostly one at a time, drawn by their apparent worth; none that were
        tried for it."""
        there = moves_of(expansion.seed)
        parent = expansion.seed.id if expansion.seed else ""
        likely = [self._likely(move, there) for move in self.landscape.moves]
        tried = {outcome.idea.plan for outcome in history if outcome.idea.parent == parent}
        ideas: list[Idea] = []
        for _ in range(TRIES * expansion.ideas if any(likely) else 0):
            if len(ideas) == expansion.ideas:
                break
            size = 1
            while rng.random() < MORE:
                size += 1
            moves = sorted(set(rng.choices(self.landscape.moves, likely, k=size)))
            if (plan := json.dumps(moves)) in tried:
                continue
            tried.add(plan)
            ideas.append(
                Idea(
                    text=_in_words(moves, there),
                    category=self.landscape.category[moves[0]],
                    parent=parent,
                    round=expansion.round,
                    proposer="landscape",
                    plan=plan,
                )
            )
        return ideas

    def _likely(self, move: int, there: frozenset[int]) -> float:
        """The relative probability of adding the move or, if it is present, of removing it."""
        worth = 4 * self._insight * self.landscape.worth[move]
        return self._undoing * math.exp(-worth) if move in there else math.exp(worth)

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """The parent's moves with the idea's changes; some variants fail."""
        inherited = 0.5 * contents(parent.kernel)["quality"] if parent else 0.0
        moves = sorted(moves_of(parent) ^ {*json.loads(idea.plan)})
        for number in range(n):
            fails = rng.choice(FAILURES) if rng.random() < self._failures else None
            quality = inherited + rng.gauss(0.0, self._noise)
            if number >= len(written):
                yield kernel_of(moves, quality, fails)

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """Returns None: nothing is repaired."""
        return None


class LandscapeEvaluator:
    """The verdicts on kernels of a landscape: one second of device time each, and always the same."""

    def __init__(self, landscape: Landscape, *, seed: int, measurement: float) -> None:
        self._landscape, self._seed, self._measurement = landscape, seed, measurement

    def true_speedup(self, kernel: Kernel) -> float:
        """The speedup without measurement noise."""
        content = contents(kernel)
        return START * math.exp(self._landscape.gain(frozenset(content["moves"])) + content["quality"])

    async def describe(self, problem: Problem) -> dict[str, str]:
        """There is no device."""
        return {"device": "landscape"}

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """See `KernelEvaluator`; a thorough measurement has a quarter of the noise."""
        if fails := contents(kernel)["fails"]:
            return Evaluation(status=Status(fails), log="It fails.", device_s=1.0)
        noise = self._measurement / 4 if thorough else self._measurement
        rng = random.Random(f"{self._seed}/{kernel.id}/{thorough}")
        speedup = self.true_speedup(kernel) * math.exp(rng.gauss(0.0, noise))
        timing = Timing(
            kernel_ms=EAGER_MS / speedup,
            eager_ms=EAGER_MS,
            speedup=speedup,
            speedup_low=speedup * math.exp(-2 * noise),
            speedup_high=speedup * math.exp(2 * noise),
        )
        return Evaluation(status=Status.CORRECT, timing=timing, device_s=1.0)

    async def race(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        threshold: Threshold,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """See `RacingEvaluator`. Both stages measure the same."""
        full = await self.evaluate(problem, kernel, on_stage=on_stage)
        quick = after_quick_stage(full, threshold)
        return full if threshold == 0 or reaches(quick, threshold) else quick

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """Measures each kernel thoroughly."""
        return [await self.evaluate(problem, kernel, thorough=True) for kernel in kernels]


def _in_words(moves: Sequence[int], there: frozenset[int]) -> str:
    added = ", ".join(str(move) for move in moves if move not in there)
    taken = ", ".join(str(move) for move in moves if move in there)
    return "; ".join([f"add {added}"] * bool(added) + [f"take away {taken}"] * bool(taken)).capitalize() + "."


def kernel_of(moves: Sequence[int], quality: float, fails: Status | None) -> Kernel:
    """A kernel whose source states its contents."""
    content = {"moves": [*moves], "quality": round(quality, 6), "fails": fails.value if fails else ""}
    return Kernel(source=f"# {json.dumps(content)}\n", language="cpp")


def contents(kernel: Kernel) -> Mapping[str, Any]:
    """The contents that a kernel's source states."""
    content: Mapping[str, Any] = json.loads(kernel.source.removeprefix("# "))
    return content


def moves_of(seed: Seed | None) -> frozenset[int]:
    """The moves of a seed; the reference has none."""
    return frozenset(contents(seed.kernel)["moves"]) if seed else frozenset()
