"""One evaluator for all searches of a comparison: what one of them had measured is not measured again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from evaluators.evaluation import Evaluation
from evaluators.problem import Kernel, Problem
from search.protocols import Evaluator

Question = tuple[str, str, str]
"""A problem's id, the search that asks if it shares nothing, and which kernels are measured how."""


class SharedVerdicts:
    """Verdicts by problem and kernel, asked of `evaluator` once. They are kept in the file `path`, a line
    each, and found there by a comparison that is resumed. Failures of our own are neither kept nor shared.

    A search counts a verdict that it shares as one of its evaluations, and the time on the device as its own:
    the budget is what the search would have spent alone. Equal kernels have equal times in all searches, so
    that a difference between two of them is in the kernels that they found. `on_verdict` is told how many
    there are after each. A context manager.
    """

    def __init__(self, evaluator: Evaluator, path: Path, on_verdict: Callable[[int], None]) -> None:
        self._evaluator, self._path, self._on_verdict = evaluator, path, on_verdict
        self._asked: dict[Question, asyncio.Task[list[Evaluation]]] = {}
        self._known: dict[Question, list[Evaluation]] = dict(_kept(path))
        self._file: TextIO | None = None

    def __enter__(self) -> SharedVerdicts:
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def of_a_search(self, alone: str = "") -> SearchVerdicts:
        """The evaluator of one search; with a name under `alone` of one that shares nothing."""
        return SearchVerdicts(self, self._evaluator, alone)

    async def ask(
        self, question: Question, measure: Callable[[], Coroutine[Any, Any, list[Evaluation]]]
    ) -> list[Evaluation]:
        """The answer that is known, or under way, or else what `measure` finds. Whoever is cancelled while it
        waits takes the measurement from nobody."""
        if question in self._known:
            return self._known[question]
        if question not in self._asked:
            task = asyncio.create_task(measure())
            self._asked[question] = task
            task.add_done_callback(lambda done: self._keep(question, done))
        return await asyncio.shield(self._asked[question])

    def _keep(self, question: Question, done: asyncio.Task[list[Evaluation]]) -> None:
        del self._asked[question]
        if done.cancelled() or done.exception() is not None:
            return
        found = done.result()
        if all(each.status.is_of_the_kernel for each in found):
            self._known[question] = found
            self._on_verdict(len(self._known))
            if self._file is not None and not self._file.closed:
                line = {"asked": question, "found": [each.to_json() for each in found]}
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()


class SearchVerdicts:
    """The shared verdicts as one search sees them. When it has the same kernels measured against one another
    again it learns something new."""

    def __init__(self, shared: SharedVerdicts, evaluator: Evaluator, alone: str) -> None:
        self._shared, self._evaluator, self._alone = shared, evaluator, alone
        self._sessions: Counter[str] = Counter()

    async def describe(self, problem: Problem) -> dict[str, str]:
        """See `Evaluator`."""
        return await self._evaluator.describe(problem)

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """See `Evaluator`. Only the search that asked first is told of the stages."""

        async def measure() -> list[Evaluation]:
            found = self._evaluator.evaluate(problem, kernel, thorough=thorough, on_stage=on_stage)
            return [await found]

        how = "thorough" if thorough else "quick"
        (found,) = await self._shared.ask((problem.id, self._alone, f"{kernel.id} {how}"), measure)
        return found

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """See `Evaluator`."""
        ordered = sorted({each.id: each for each in kernels}.values(), key=lambda each: each.id)
        together = " ".join(each.id for each in ordered)
        self._sessions[together] += 1

        async def measure() -> list[Evaluation]:
            return await self._evaluator.compare(problem, ordered)

        session = f"{together} session {self._sessions[together]}"
        found = await self._shared.ask((problem.id, self._alone, session), measure)
        by_id = {kernel.id: each for kernel, each in zip(ordered, found, strict=True)}
        return [by_id[each.id] for each in kernels]


def _kept(path: Path) -> Iterable[tuple[Question, list[Evaluation]]]:
    """What the file holds, but for half a line of a process that was killed. Raises OSError."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            kept = json.loads(line)
        except ValueError:
            continue
        yield tuple(kept["asked"]), [Evaluation.from_json(each) for each in kept["found"]]
