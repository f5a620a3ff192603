"""One evaluator for all searches of a comparison, which measures each kernel once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from evaluators.base.jsonl_store import JsonlStore
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import Threshold
from search.protocols import KernelEvaluator, RacingEvaluator


class SharedVerdicts:
    """Verdicts by problem and kernel. `evaluator` is asked once for each; the file `path` has a line for
    each, from which a resumed comparison continues. Failures of the infrastructure are neither kept nor
    shared.

    A shared verdict counts against the search's budget, with its time on the device, as if the search had run
    alone. Equal kernels have equal times in all searches, so that a difference between two searches comes
    from the kernels that they found. `on_verdict` is called with the number of verdicts after each new one.
    """

    def __init__(self, evaluator: KernelEvaluator, path: Path, on_verdict: Callable[[int], None]) -> None:
        self._evaluator, self._on_verdict = evaluator, on_verdict
        self._kept = JsonlStore(path)
        self._asked: dict[str, asyncio.Task[list[Evaluation]]] = {}

    def for_search(self, alone: str = "") -> SearchVerdicts:
        """The evaluator of one search. A search with a name in `alone` shares nothing."""
        return SearchVerdicts(self, self._evaluator, alone)

    async def answer(
        self, question: str, measure: Callable[[], Coroutine[Any, Any, list[Evaluation]]]
    ) -> list[Evaluation]:
        """The known answer, or the one being measured, or else a new one from `measure`. Cancelling one
        caller does not cancel the measurement of others."""
        known = self._kept.get(question)
        if known is not None:
            return [Evaluation.from_json(each) for each in known]
        if question not in self._asked:
            task = asyncio.create_task(measure())
            self._asked[question] = task
            task.add_done_callback(lambda done: self._keep(question, done))
        return await asyncio.shield(self._asked[question])

    def _keep(self, question: str, done: asyncio.Task[list[Evaluation]]) -> None:
        del self._asked[question]
        if done.cancelled() or done.exception() is not None:
            return
        found = done.result()
        if all(each.status.is_of_the_kernel for each in found):
            self._kept.put(question, [each.to_json() for each in found])
            self._on_verdict(len(self._kept))


class SearchVerdicts:
    """The shared verdicts as one search sees them. Each further session of the search with the same kernels
    is a new measurement."""

    def __init__(self, shared: SharedVerdicts, evaluator: KernelEvaluator, alone: str) -> None:
        self._shared, self._evaluator, self._alone = shared, evaluator, alone
        self._sessions: Counter[str] = Counter()

    async def describe(self, problem: Problem) -> dict[str, str]:
        """See `KernelEvaluator`."""
        return await self._evaluator.describe(problem)

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """See `KernelEvaluator`. Only the search that asked first sees the stages."""

        async def measure() -> list[Evaluation]:
            found = self._evaluator.evaluate(problem, kernel, thorough=thorough, on_stage=on_stage)
            return [await found]

        how = "thorough" if thorough else "quick"
        (found,) = await self._shared.answer(self._question(problem, f"{kernel.id} {how}"), measure)
        return found

    async def race(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        threshold: Threshold,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """See `RacingEvaluator`. Requests with different thresholds share nothing."""
        evaluator = self._evaluator
        if not isinstance(evaluator, RacingEvaluator):
            raise TypeError(f"evaluator {type(evaluator).__name__} cannot judge in two stages")

        async def measure() -> list[Evaluation]:
            return [await evaluator.race(problem, kernel, threshold=threshold, on_stage=on_stage)]

        (found,) = await self._shared.answer(
            self._question(problem, f"{kernel.id} race {threshold}"), measure
        )
        return found

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """See `KernelEvaluator`."""
        ordered = sorted({each.id: each for each in kernels}.values(), key=lambda each: each.id)
        together = " ".join(each.id for each in ordered)
        self._sessions[together] += 1

        async def measure() -> list[Evaluation]:
            return await self._evaluator.compare(problem, ordered)

        session = f"{together} session {self._sessions[together]}"
        found = await self._shared.answer(self._question(problem, session), measure)
        by_id = {kernel.id: each for kernel, each in zip(ordered, found, strict=True)}
        return [by_id[each.id] for each in kernels]

    def _question(self, problem: Problem, what: str) -> str:
        """The key of a measurement: problem, kernels, and the search if it shares nothing."""
        return " ".join(filter(None, (problem.id, self._alone, what)))
