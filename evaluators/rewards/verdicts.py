"""Verdicts for a reward server: each question is measured once, and its verdict kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evaluators.base.jsonl_store import JsonlStore
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from evaluators.rewards.line import Line


class Judge(Protocol):
    """Judges kernels: a `Pool`, or a `QueueEvaluator`."""

    async def describe(self, problem: Problem) -> dict[str, str]:
        """See `Pool`."""
        ...

    async def evaluate(self, problem: Problem, kernel: Kernel, *, thorough: bool = False) -> Evaluation:
        """See `Pool`."""
        ...


@dataclass(frozen=True, kw_only=True)
class KeptVerdict:
    """An answer: the evaluation, and whether it was `known` before."""

    evaluation: Evaluation
    known: bool


@dataclass(eq=False, kw_only=True)
class _Measurement:
    task: asyncio.Task[Evaluation]
    asking: int = 0


class Verdicts:
    """Asks the judge, at most once at a time for each question. A measurement that nobody waits for any
    more is cancelled.

    Args:
        judge: Measures.
        line: The line of requests that wait for it.
        path: The file of the verdicts that are kept.
        valid_for: Identifies device, versions and settings. Verdicts that were kept for others are not used.
    """

    def __init__(self, judge: Judge, line: Line, path: Path, valid_for: str) -> None:
        self._judge, self._line, self._valid_for = judge, line, valid_for
        self._store = JsonlStore(path)
        self._measuring: dict[str, _Measurement] = {}

    async def ask(
        self, problem: Problem, kernel: Kernel, *, thorough: bool = False, client: str = "", priority: int = 0
    ) -> KeptVerdict:
        """The verdict on a kernel. Raises LineIsFull."""
        question = f"{self._valid_for} {problem.id} {kernel.id}{' thorough' * thorough}"
        if (known := self._store.get(question)) is not None:
            return KeptVerdict(evaluation=Evaluation.from_json(known), known=True)
        if question not in self._measuring:

            async def measure() -> Evaluation:
                async with self._line.turn(client, priority):
                    found = await self._judge.evaluate(problem, kernel, thorough=thorough)
                if found.is_lasting:
                    self._store.put(question, found.to_json())
                return found

            self._measuring[question] = _Measurement(task=asyncio.create_task(measure()))
        return KeptVerdict(evaluation=await self._outcome(question), known=False)

    async def _outcome(self, question: str) -> Evaluation:
        measurement = self._measuring[question]
        measurement.asking += 1
        try:
            return await asyncio.shield(measurement.task)
        finally:
            measurement.asking -= 1
            if not measurement.asking:
                measurement.task.cancel()
                del self._measuring[question]
