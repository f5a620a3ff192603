"""The evaluator of a search whose devices are elsewhere: it puts requests into a queue's folder and waits for
their verdicts.

It stands where a `Pool` stands, and not below one as a `Host`: a host measures built kernels, so that
compiled code would have to travel, and held-out cases, repetitions and the blame of devices would be decided
far from the device. The pool of a worker does all of that, and a request contains nothing but text.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.device.settings import Settings
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.requests import DeviceRequest, Operation, WantedProfile, request_for
from evaluators.queue.verdicts import BadVerdict, DeviceVerdict
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.probe import Probe
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import Threshold
from evaluators.records.reference_audit import ReferenceAudit
from evaluators.scheduler.host import OnStage

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
WAITING = "waiting"
"""The stage of a kernel whose request waits in the queue."""

Question = tuple[Operation, frozenset[str]]
"""What makes two measurements of a search the same question: the operation and the kernels' ids."""


class QueueEvaluator:
    """Has kernels evaluated by the workers of a queue (see `evaluators.serve`).

    The search is pinned to one kind of device: the one named, or else the one that first describes its
    problem. A verdict from another kind is refused.

    Args:
        settings: How to measure.
        on_gpu: Whether GPUs measure; not needed here, because a problem says it itself.
        path: The queue's folder.
        device: The name of the devices, such as `NVIDIA H200`; "": that of the first worker.
        trusted: Whether to use the folder although others can write to it.
        outstanding: The largest number of requests that a search has in the queue at a time.
        look_every_s: Seconds between two looks for verdicts.

    Raises:
        UsageError: The folder cannot be used.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        on_gpu: bool = True,
        path: str,
        device: str = "",
        trusted: bool = False,
        outstanding: int = 64,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        del on_gpu
        self.outstanding = outstanding
        self._folder = QueueFolder(Path(path), trusted=trusted)
        self._settings, self._look_every_s = settings, look_every_s
        self._kind = device
        self.search = f"unnamed-{uuid.uuid4().hex[:12]}"
        self._answered: Counter[Question] = Counter()
        self._facts: dict[str, str] = {}
        self._waiting: dict[str, DeviceRequest] = {}
        """The requests, by id, that had no verdict when it was last looked for."""
        self._verdicts: set[str] = set()
        self._looked_s = -float("inf")

    def for_search(
        self,
        search: str,
        answered: Iterable[Question] = (),
        facts: Mapping[str, str] | None = None,
        *,
        is_described: bool = True,
    ) -> QueueEvaluator:
        """The evaluator of one search.

        Args:
            search: The search's name in the queue. The same name finds the verdicts that arrived while the
                search was not running.
            answered: The questions whose answers the search has recorded: asking one again is a new
                measurement.
            facts: The facts of device and software that the search has recorded: it stays pinned to that
                device.
            is_described: Whether a worker has stated these facts. If not, they only pin the search.

        Raises:
            UsageError: The facts are those of another device than the one named.
        """
        facts = facts or {}
        if self._kind and facts.get("device", self._kind) != self._kind:
            raise UsageError(
                f"pool.device={self._kind}: the search was measured on {facts['device']}; leave pool.device "
                "out, or start a new run"
            )
        own = QueueEvaluator(
            settings=self._settings,
            path=str(self._folder.path),
            device=facts.get("device", self._kind),
            trusted=True,  # checked when this one was made
            outstanding=self.outstanding,
            look_every_s=self._look_every_s,
        )
        own.search, own._answered = search, Counter(answered)
        own._facts = dict(facts) if is_described else {}
        return own

    @property
    def kind(self) -> str:
        """The name of the devices that the search is pinned to; "" until a worker has described one."""
        return self._kind

    def awaited(self) -> list[str]:
        """What it waits for, a line each: the requests without a verdict when it last looked."""
        return [f"{each.id} {each.title}" for each in self._waiting.values()]

    async def describe(self, problem: Problem) -> dict[str, str]:
        """See `KernelEvaluator`. Pins the search to the device that answers, unless it is pinned by its
        records."""
        if self._facts:
            return dict(self._facts)
        verdict = await self._ask(Operation.DESCRIBE, problem)
        self._kind = self._kind or verdict.device
        return dict(verdict.facts)

    async def audit(self, problem: Problem) -> ReferenceAudit:
        """How well the problem's reference can judge kernels. Raises WorkerBroken."""
        verdict = await self._ask(Operation.AUDIT, problem)
        assert verdict.audit is not None
        return verdict.audit

    async def evaluate(
        self, problem: Problem, kernel: Kernel, *, thorough: bool = False, on_stage: OnStage | None = None
    ) -> Evaluation:
        """See `KernelEvaluator`. The only stage is `waiting`."""
        operation = Operation.THOROUGH if thorough else Operation.EVALUATE
        verdict = await self._ask(operation, problem, [kernel], on_stage)
        return verdict.measured[0]

    async def race(
        self, problem: Problem, kernel: Kernel, *, threshold: Threshold, on_stage: OnStage | None = None
    ) -> Evaluation:
        """See `RacingEvaluator`. The only stage is `waiting`."""
        verdict = await self._ask(Operation.RACE, problem, [kernel], on_stage, threshold=threshold)
        return verdict.evaluations[0]

    async def evaluate_beside(
        self,
        problem: Problem,
        kernel: Kernel,
        companions: Sequence[Kernel],
        *,
        on_stage: OnStage | None = None,
    ) -> Evaluation:
        """See `TimesCompanions`. One request does both."""
        verdict = await self._ask(Operation.EVALUATE, problem, [kernel], on_stage, companions=companions)
        return verdict.measured[0]

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """See `KernelEvaluator`."""
        return list((await self._ask(Operation.COMPARE, problem, kernels)).measured)

    async def probe(self, problem: Problem, kernel: Kernel, *, on_stage: OnStage | None = None) -> Probe:
        """See `ProbeTimer`. The only stage is `waiting`."""
        verdict = await self._ask(Operation.PROBE, problem, [kernel], on_stage)
        if verdict.probe is not None:
            return verdict.probe
        status = Status.UNFIT_REFERENCE if verdict.unfit else Status.INFRASTRUCTURE_ERROR
        return Probe.failed(status, verdict.unfit or verdict.broken)

    async def diagnose(
        self, problem: Problem, kernel: Kernel, evaluation: Evaluation, *, level: str
    ) -> Diagnosis:
        """See `Diagnoser`. `level` is the highest level to reach, or `auto`."""
        timing = evaluation.timing
        call_ms = timing.kernel_ms if timing is not None else None
        wanted = WantedProfile(level=level, roofline=evaluation.roofline, call_ms=call_ms)
        verdict = await self._ask(Operation.DIAGNOSE, problem, [kernel], profile=wanted)
        return verdict.diagnosis or Diagnosis(missing={"profile": verdict.unfit or verdict.broken})

    def withdraw(self) -> None:
        """Removes the search's requests from the queue, because nobody waits for them any more. Raises
        OSError."""
        self._folder.withdraw(self.search)

    async def _ask(
        self,
        operation: Operation,
        problem: Problem,
        kernels: Sequence[Kernel] = (),
        on_stage: OnStage | None = None,
        **more: Any,
    ) -> DeviceVerdict:
        """The verdict on a new measurement; `more` are further arguments of `request_for`. Raises
        WorkerBroken, or UnfitProblem, if there can be none."""
        question = operation, frozenset(each.id for each in kernels)
        request = request_for(
            operation,
            problem,
            kernels,
            search=self.search,
            settings=self._settings,
            kind=self._kind,
            number=self._answered[question],
            **more,
        )
        verdict = await self._answer(request, on_stage or (lambda stage: None))
        if not kernels and (verdict.unfit or verdict.broken):
            self._folder.discard_verdict(request)  # so that a later call asks again
            raise UnfitProblem(verdict.unfit) if verdict.unfit else WorkerBroken(verdict.broken)
        if kernels:
            self._answered[question] += 1
        return verdict

    async def _answer(self, request: DeviceRequest, on_stage: OnStage) -> DeviceVerdict:
        """Waits for a verdict that fits the request. One that does not is removed, and the request made
        again."""
        try:
            self._folder.submit(request)
            while True:
                if self._has_verdict(request.id):
                    try:
                        return self._folder.verdict(request)
                    except BadVerdict as error:
                        logger.warning("%s; it is asked again", error)
                        self._folder.discard_verdict(request)
                        self._folder.submit(request)
                if request.id not in self._waiting:
                    self._waiting[request.id] = request
                    on_stage(WAITING)
                await asyncio.sleep(self._look_every_s)
        finally:
            self._waiting.pop(request.id, None)

    def _has_verdict(self, id: str) -> bool:
        """Whether there is a verdict. One listing serves all requests; it also makes NFS look again."""
        if id not in self._waiting or time.monotonic() - self._looked_s >= self._look_every_s:
            self._verdicts = self._folder.answered(self.search)
            self._looked_s = time.monotonic()
        return id in self._verdicts
