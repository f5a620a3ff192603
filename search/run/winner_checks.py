"""What is measured of a search's winner after its end: configurations that no search saw, and how it compares
with another kernel."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from evaluators.records.cases import held_out
from evaluators.records.evaluation import PairedSpeedup, Status
from evaluators.records.problem import Case, Kernel, Problem
from evaluators.records.scores import Estimate, Scored, geometric_mean
from evaluators.reference.loading import KEEPS_TYPES, assigned_names, load_module, own_held_out
from evaluators.scheduler.companions import paired
from search.protocols import KernelEvaluator

TYPES = ("float32", "bfloat16", "float16")
"""The types from which a held-out one is chosen."""
DRAWS = 3
"""The number of configurations that are drawn at most for each that is wanted: a reference accepts few."""
MOST_DRAWS = 100
"""Some references offer few sizes, and repeat them."""
SMALLEST = 2
"""Whole numbers from this one on are taken for sizes."""


@dataclass(frozen=True, kw_only=True)
class HeldOutResult:
    """The verdict on a winner in a configuration that no search saw: `speedup` is over eager PyTorch, 1 if
    the kernel declines it and 0 if it is wrong; `cause` says why it is wrong."""

    name: str
    status: str
    speedup: float
    cause: str = ""

    @property
    def passes(self) -> bool:
        """Whether the kernel is right, or declines."""
        return self.speedup > 0


@dataclass(frozen=True, kw_only=True)
class HeldOutSummary:
    """How winners do in configurations that no search saw, next to the listed ones: how many there are, how
    many of them pass all, and the geometric means over those that pass any."""

    winners: int
    pass_all: int
    listed: Estimate
    held_out: Estimate

    def __str__(self) -> str:
        return (
            f"{self.pass_all} of {self.winners} winners pass all; mean {self.held_out.value:.3g}, "
            f"listed ones {self.listed.value:.3g}"
        )


class Winner(Protocol):
    """The result of a search: its problem and the problem's weight, its winner's speedup in the final
    measurement, and the verdicts on held-out configurations."""

    @property
    def problem(self) -> str:
        """The problem's name."""
        ...

    @property
    def weight(self) -> float:
        """The problem's weight."""
        ...

    @property
    def final(self) -> float | None:
        """The speedup over eager PyTorch."""
        ...

    @property
    def held_out(self) -> Sequence[HeldOutResult]:
        """The verdicts; empty if none were asked for."""
        ...


def held_out_summary(searches: Iterable[Winner]) -> HeldOutSummary | None:
    """The summary of those with verdicts on held-out configurations; None if there are none."""
    judged = [each for each in searches if each.held_out and each.final]
    passing = [(each, unseen) for each in judged if (unseen := held_out_speedup(each.held_out))]
    if not judged:
        return None
    return HeldOutSummary(
        winners=len(judged),
        pass_all=sum(not only_listed(each.held_out) for each in judged),
        listed=mean_speedup([(each, each.final or 0.0) for each, _ in passing]),
        held_out=mean_speedup(passing),
    )


def mean_speedup(speedups: Sequence[tuple[Winner, float]]) -> Estimate:
    """The geometric mean of winners' speedups, by the weights of their problems."""
    return geometric_mean(
        [
            Scored(problem=each.problem, speedups=[speedup], compiled=[True], weight=each.weight)
            for each, speedup in speedups
        ]
    )


def held_out_speedup(results: Sequence[HeldOutResult]) -> float | None:
    """The geometric mean over the configurations in which the kernel passes; None if there are none."""
    speedups = [each.speedup for each in results if each.passes]
    return math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else None


def only_listed(results: Sequence[HeldOutResult]) -> str:
    """What a kernel that knows the listed shapes and types alone does wrong, in words; "" for any other."""
    wrong = [each for each in results if not each.passes]
    if not wrong:
        return ""
    first = wrong[0]
    passes = len(results) - len(wrong)
    return (
        f"right on {passes} of {len(results)} held-out configurations; {first.name}: "
        f"{first.status}{f', {first.cause}' if first.cause else ''}"
    )


async def on_held_out(
    evaluator: KernelEvaluator, problem: Problem, kernel: Kernel, *, count: int, seed: int
) -> tuple[HeldOutResult, ...]:
    """Judges a kernel in `count` configurations with other sizes and one with another type, as far as the
    reference accepts as many. Equal seeds give equal configurations."""
    results: list[HeldOutResult] = []
    for wanted, cases in ((count, _other_sizes(problem, seed)), (min(count, 1), _other_types(problem))):
        found: list[HeldOutResult] = []
        for _, case in zip(range(DRAWS * wanted), cases, strict=False):
            if len(found) == wanted:
                break
            evaluation = await evaluator.evaluate(problem.of_case(case), kernel)
            if not evaluation.status.is_of_the_kernel:
                continue
            declined = evaluation.status is Status.DECLINED
            found.append(
                HeldOutResult(
                    name=case.name,
                    status=evaluation.status.value,
                    speedup=1.0 if declined else evaluation.speedup,
                    cause="" if declined or evaluation.status is Status.CORRECT else evaluation.cause,
                )
            )
        results += found
    return tuple(results)


def _other_sizes(problem: Problem, seed: int) -> Iterator[Case]:
    """Cases of sizes that no case of the problem has, each once."""
    generator = random.Random(f"held out/{seed}/{problem.id}")
    own = own_held_out(problem, generator)
    like = problem
    if not problem.cases:
        sizes = _sizes(problem)
        smaller = {name: max(1, size // 2) for name, size in sizes.items()}
        like = replace(problem, cases=(Case(sizes=sizes), Case(sizes=smaller)))
    seen = {each.name for each in like.cases}
    for case in itertools.islice(held_out(like, generator, own), MOST_DRAWS):
        if case.name not in seen:
            yield replace(case, weight=1.0, held_out=False)
        seen.add(case.name)


def _sizes(problem: Problem) -> dict[str, int]:
    """The whole numbers that a reference without cases assigns at its top level."""
    module = load_module(problem.source, problem.overrides)
    values = {name: getattr(module, name, None) for name in assigned_names(problem.source)}
    return {name: value for name, value in sorted(values.items()) if type(value) is int and value >= SMALLEST}


def _other_types(problem: Problem) -> Iterator[Case]:
    """The largest case in types that no case of the problem has; none if the reference keeps its types."""
    if KEEPS_TYPES in assigned_names(problem.source):
        return
    first = problem.cases[0] if problem.cases else Case()
    seen = {problem.dtype, *(each.dtype for each in problem.cases)}
    yield from (replace(first, dtype=each, weight=1.0, droppable=False) for each in TYPES if each not in seen)


async def beside(
    evaluator: KernelEvaluator, problem: Problem, kernel: Kernel, rival: Kernel
) -> PairedSpeedup | None:
    """How many times as fast as the rival the kernel is, from one session; None if either could not be
    measured."""
    if kernel.id == rival.id:
        return None
    own, other = await evaluator.compare(problem, [kernel, rival])
    return paired(rival.id, own, other)
