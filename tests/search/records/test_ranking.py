from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import interval
from search.records.ranking import LOWER_END, MEDIAN, LeaderComparison, Ranking, unconfirmed
from search.records.tree import Idea, Seed
from tests.search.fakes import FakeEvaluator, FakeProposer, failed, kernel, search


def found(low: float, speedup: float, high: float, turns_ms: Sequence[float] = ()) -> Evaluation:
    timing = Timing(
        kernel_ms=1 / speedup,
        eager_ms=1.0,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        kernel_samples_ms=tuple(turns_ms),
    )
    return Evaluation(status=Status.CORRECT, timing=timing)


OURS = Evaluation(status=Status.INFRASTRUCTURE_ERROR)
CALL_MS = 1 / 2.2
"""Of kernels that are `found` to be 2.2 times as fast as eager."""


def test_the_lower_end_counts_not_the_lucky_median() -> None:
    own = {"lucky": found(0.2, 9.0, 30.0), "sure": found(2.9, 3.0, 3.1), "wrong": failed()}
    assert Ranking().order(own) == ["sure", "lucky"]
    assert Ranking(MEDIAN).order(own) == ["lucky", "sure"]
    with pytest.raises(ValueError, match="ranking is 'mean'"):
        Ranking("mean")


def test_equal_ones_stay_in_their_order() -> None:
    own = {name: found(2.0, 2.1, 2.2) for name in "cab"}
    assert Ranking().order(own) == ["c", "a", "b"]


def test_leaders_are_those_whose_intervals_overlap_the_bests() -> None:
    own = {"best": found(2.9, 3.0, 3.1), "near": found(2.8, 2.9, 3.0), "wide": found(0.1, 1.0, 2.9)}
    own |= {"far": found(1.0, 1.1, 2.8), "wrong": failed()}
    assert Ranking().leaders(own) == ["best", "near", "wide"]
    assert Ranking(MEDIAN).leaders(own) == [], "older runs compare nothing"
    assert Ranking().leaders({"best": own["best"], "far": own["far"]}) == [], "the best is clear"
    assert Ranking().leaders({}) == []
    many = {str(n): found(2.0, 2.1, 2.2) for n in range(9)}
    assert Ranking().leaders(many) == ["0", "1", "2", "3", "4"]


def test_one_session_orders_its_kernels_turn_by_turn() -> None:
    """Noise that all of a turn share is larger than what sets the kernels apart."""
    noise = [1.0, 3.0, 1.5, 8.0, 1.1, 2.0, 1.3, 5.0]
    ranking = Ranking()
    own = {"a": found(2.0, 2.2, 2.4), "b": found(1.9, 2.2, 2.5), "other": found(1.95, 1.96, 1.97)}
    assert ranking.order(own) == ["a", "other", "b"]
    ranking.add(
        LeaderComparison(
            evaluations={
                "a": found(2.0, 2.2, 2.4, [1.05 * each for each in noise]),
                "b": found(1.8, 2.2, 2.6, noise),
            }
        )
    )
    assert ranking.order(own) == ["b", "a", "other"], "b is at least what a is"
    assert ranking.speedup("b", "a") == pytest.approx(interval([1.05] * 8, CALL_MS))
    assert ranking.speedup("b", "other") is None
    assert ranking.leaders(own) == [], "one was faster, and the other is clear"


def test_the_turns_of_all_sessions_of_two_count() -> None:
    fast, slow = [1.0] * 8, [1.2] * 8
    own = {name: found(2.0, 2.2, 2.4) for name in "abc"}
    ranking = Ranking()
    ranking.add(LeaderComparison(evaluations={"a": found(2, 2.2, 2.4, fast), "b": found(2, 2.2, 2.4, slow)}))
    assert ranking.leaders(own) == ["a", "c"], "b was slower"
    ranking.add(LeaderComparison(evaluations={"a": found(2, 2.2, 2.4, slow), "c": found(2, 2.2, 2.4, fast)}))
    assert ranking.order(own) == ["c", "a", "b"]
    ranking.add(LeaderComparison(evaluations={"a": found(2, 2.2, 2.4, slow), "b": found(2, 2.2, 2.4, fast)}))
    assert ranking.speedup("a", "b") == pytest.approx(interval([1.2] * 8 + [1 / 1.2] * 8, CALL_MS))
    ranking.add(LeaderComparison(evaluations={"a": found(2, 2.2, 2.4, slow), "b": found(2, 2.2, 2.4, fast)}))
    assert ranking.order(own) == ["b", "c", "a"], "b was faster in two of three, and c was not beside it"


def test_what_one_session_cannot_tell_is_measured_again_and_not_for_ever() -> None:
    own = {name: found(2.0, 2.2, 2.4) for name in "ab"}
    wild = [0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7, 1.9]
    ranking, sessions = Ranking(), 0
    while ranking.leaders(own):
        sessions += 1
        evaluations = {"a": found(1.9, 2.2, 2.4, wild), "b": found(1.9, 2.2, 2.4, [1.0] * 8)}
        ranking.add(LeaderComparison(evaluations=evaluations))
    assert sessions == 3
    even = Ranking()
    near = {"a": found(1.9, 2.2, 2.4, [1.001] * 8), "b": found(1.9, 2.2, 2.4, [1.0] * 8)}
    even.add(LeaderComparison(evaluations=near))
    assert even.leaders(own) == [], "they are too near to one another to matter"


def test_sessions_that_contradict_one_another_in_a_circle_still_give_an_order() -> None:
    fast, slow = [1.0] * 8, [1.2] * 8
    own = {name: found(low, 2.2, 2.4) for name, low in (("a", 2.0), ("b", 1.9), ("c", 1.8))}
    for pairs in itertools.permutations([("a", "b"), ("b", "c"), ("c", "a")]):
        ranking = Ranking()
        for one, other in pairs:
            evaluations = {one: found(1.8, 2.2, 2.4, fast), other: found(1.8, 2.2, 2.4, slow)}
            ranking.add(LeaderComparison(evaluations=evaluations))
        assert sorted(ranking.order(own)) == ["a", "b", "c"]


def test_a_kernel_that_fails_a_comparison_is_not_relied_on_and_infrastructure_errors_say_nothing() -> None:
    own = {name: found(2.0, 2.2, 2.4) for name in "abc"}
    ranking = Ranking()
    ranking.add(LeaderComparison(evaluations={"a": failed(), "b": OURS, "c": found(1.0, 1.1, 1.2)}))
    assert ranking.order(own) == ["b", "c"]
    assert ranking.leaders(own) == []


def test_samples_of_one_session_belong_together() -> None:
    with pytest.raises(ValueError, match=r"turns, not \[1, 2\]"):
        LeaderComparison(evaluations={"a": found(1, 2, 3, [1.0]), "b": found(1, 2, 3, [1.0, 2.0])})
    few = found(1, 2, 3, [1.0])
    assert LeaderComparison(evaluations={"a": few, "b": few}).speedup("a", "b") is None


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        (None, "it was not measured again"),
        (failed(), "incorrect when measured again"),
        (found(0.001, 0.65, 12.97), "the interval [0.00, 12.97] is too wide"),
        (found(0.97, 1.01, 1.05), "the interval [0.97, 1.05] contains 1.00"),
        (found(1.0, 1.01, 1.05), "the interval [1.00, 1.05] contains 1.00"),
        (found(0.6, 0.65, 0.7), "it is slower than eager: the interval [0.60, 0.70] lies below 1.00"),
        (found(1.02, 1.1, 1.2), ""),
    ],
)
def test_what_does_not_clear_eager_is_not_confirmed(evaluation: Evaluation | None, says: str) -> None:
    assert unconfirmed(evaluation) == says


# --- a machine that is busy ------------------------------------------------------------------------

SPEEDUPS = (1.0, 1.3, 1.7, 2.2, 2.9)
KERNELS = {kernel(f"{speedup} {copy}").id: speedup for speedup in SPEEDUPS for copy in "ab"}


class TenKernels(FakeProposer):
    """Two sources for each of five speeds, in any order."""

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        kernels = [kernel(f"{speedup} {copy}") for speedup in SPEEDUPS for copy in "ab"]
        for each in rng.sample(kernels, n):
            yield each


class BusyMachine(FakeEvaluator):
    """Other work slows some of the blocks down, now the kernel's, now eager's, up to eightfold: a fifth to
    three fifths of them, by session. A comparison has more turns than an evaluation."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.verdict = self.thorough = lambda kernel: self._measure(f"{seed} {kernel.id}", [kernel], 8)[0]
        self.seed = seed

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        self.compared.append([kernel.id for kernel in kernels])
        return self._measure(f"{self.seed} {self.compared[-1]}", kernels, 20)

    def _measure(self, place: str, kernels: Sequence[Kernel], turns: int) -> list[Evaluation]:
        rng = random.Random(place)
        busy = rng.uniform(0.2, 0.6)
        blocks = [[self._block(rng, busy) for _ in range(len(kernels) + 1)] for _ in range(turns)]
        evaluations = []
        for n, each in enumerate(kernels):
            own = tuple(turn[n] / KERNELS[each.id] for turn in blocks)
            eager = tuple(turn[-1] for turn in blocks)
            speedup, low, high = interval([b / a for a, b in zip(own, eager, strict=True)])
            timing = Timing(
                kernel_ms=1 / speedup,
                eager_ms=1.0,
                speedup=speedup,
                speedup_low=low,
                speedup_high=high,
                kernel_samples_ms=own,
                eager_samples_ms=eager,
            )
            evaluations.append(Evaluation(status=Status.CORRECT, timing=timing))
        return evaluations

    def _block(self, rng: random.Random, busy: float) -> float:
        return rng.uniform(1.0, 1.1) * (2 ** rng.uniform(0.0, 3.0) if rng.random() < busy else 1.0)


@pytest.mark.slow
def test_on_a_busy_machine_the_winner_is_a_copy_of_the_fastest(tmp_path: Path) -> None:
    right: Counter[str] = Counter()
    tries = 60
    for seed, ranking in itertools.product(range(tries), (LOWER_END, MEDIAN)):
        finished = search(
            tmp_path / f"{ranking}_{seed}.jsonl",
            rounds=1,
            ideas=1,
            branch=10,
            seed=seed,
            proposer=TenKernels(),
            evaluator=BusyMachine(seed),
            ranking=ranking,
        )
        assert finished.best is not None
        right[ranking] += KERNELS[finished.best.kernel.id] == max(SPEEDUPS)
    assert right[MEDIAN] <= 0.7 * tries
    assert right[LOWER_END] >= 0.95 * tries
