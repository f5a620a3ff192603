"""A search whose kernels are measured through a queue: its name there, and what its journal has already."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluators.base.atomic_write import write_if_new
from evaluators.queue.queue_evaluator import Question, QueueEvaluator
from evaluators.queue.requests import Operation
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from search.app.device_facts import shipped_facts
from search.engine.outside_watch import LOOK_EVERY_S
from search.protocols import KernelEvaluator
from search.records.events import (
    ASSUMED,
    BestConfirmed,
    Event,
    KernelDiagnosed,
    LeadersCompared,
    ProbeMeasured,
    VariantEvaluated,
    VariantJudgedInFull,
)
from search.records.outside import Awaited, WaitsOutside
from search.records.run_state import rebuild

NAME = "queue_name.txt"
"""The file of a run folder with the search's name in its queue; a copy of the folder keeps the name."""


class OpeningBlocked(Exception):
    """The search cannot begin before a worker has opened its problem."""

    def __init__(self, awaited: Awaited) -> None:
        super().__init__("no worker has opened the problem yet")
        self.awaited = awaited


def queue_name(folder: Path) -> str:
    """The name of the search in a run folder, chosen once. Raises OSError."""
    file, run = folder / NAME, folder.resolve()
    name = re.sub(r"[^\w.-]", "_", f"{run.parent.name}-{run.name}").lstrip(".-")[:150]
    folder.mkdir(parents=True, exist_ok=True)
    write_if_new(file, f"{name or 'run'}-{uuid.uuid4().hex[:8]}\n")
    return file.read_text(encoding="utf-8").strip()


def for_this_search(shared: QueueEvaluator, folder: Path, past: Sequence[Event]) -> QueueEvaluator:
    """The evaluator of the search in a run folder with these events. Verdicts that arrived while the search
    was not running are found; those in its journal are not given again. A search stays with its device.
    Raises OSError, and UsageError for another device."""
    name, answered, started = queue_name(folder), _answered(past), rebuild(past).started
    if started is None:
        return shared.for_search(name, answered)
    return shared.for_search(name, answered, started.environment, is_described=started.is_described)


def _answered(past: Iterable[Event]) -> Iterator[Question]:
    """The questions whose verdicts the journal has."""
    for event in past:
        match event:
            case VariantEvaluated(variant=variant, reused=False):
                yield Operation.EVALUATE, frozenset([variant.kernel.id])
                yield Operation.RACE, frozenset([variant.kernel.id])  # one of the two was the question
            case VariantJudgedInFull(variant=variant, reused=False):
                yield Operation.RACE, frozenset([variant.kernel.id])
            case BestConfirmed(variant=variant):
                yield Operation.THOROUGH, frozenset([variant.kernel.id])
            case LeadersCompared(variants=variants):
                yield Operation.COMPARE, frozenset(each.kernel.id for each in variants)
            case KernelDiagnosed(kernel=kernel):
                yield Operation.DIAGNOSE, frozenset([kernel])
            case ProbeMeasured(kernel=Kernel(id=kernel)):
                yield Operation.PROBE, frozenset([kernel])


@dataclass(frozen=True)
class QueuedDiagnoser:
    """Has kernels diagnosed by the workers of a queue. `level` is the highest level to reach, or `auto`."""

    evaluator: QueueEvaluator
    level: str

    async def diagnose(self, problem: Problem, kernel: Kernel, evaluation: Evaluation) -> Diagnosis:
        """See `Diagnoser`."""
        return await self.evaluator.diagnose(problem, kernel, evaluation, level=self.level)


async def described(problem: Problem, judge: KernelEvaluator, *, waits: bool) -> dict[str, str]:
    """The device and software that will measure the problem. If only a worker elsewhere can tell, these are
    the shipped facts of the device that the search is pinned to. Where there are none, it waits, or raises
    OpeningBlocked if the caller does not want to wait. Raises what `describe` raises."""
    shipped = shipped_facts(judge.kind) if isinstance(judge, QueueEvaluator) else {}
    describing = asyncio.ensure_future(judge.describe(problem))
    try:
        while isinstance(judge, WaitsOutside) and (shipped or not waits):
            await asyncio.wait([describing], timeout=LOOK_EVERY_S)
            if describing.done():
                break
            awaited = judge.awaited()
            if awaited and shipped:
                return {**shipped, ASSUMED: "no worker has described the device yet"}
            if awaited:
                raise OpeningBlocked(Awaited(verdicts=tuple(awaited)))
        return await describing
    finally:
        describing.cancel()
