"""What a search asks its evaluator: no more at a time than it takes, none that starts after the end of the
search's time, and a last few after a stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from evaluators.records.evaluation import Evaluation
from evaluators.records.probe import Probe
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import IN_FULL, Threshold
from search.engine.in_flight import InFlight
from search.protocols import KernelEvaluator, ProbeTimer, RacingEvaluator, TimesCompanions
from search.records.budget import Budget
from search.records.outside import WaitsOutside

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
OnStage = Callable[[str], None]


class Requests:
    """A search's requests for one problem.

    Args:
        problem: The problem that the kernels solve.
        evaluator: Judges the kernels.
        budget: The search's limits.
        work: The search's work in flight.
        outstanding: The largest number of evaluations with the evaluator at a time.
        race: Whether kernels are judged in two stages.
        pairs_with_seed: Whether to time each correct kernel together with its seed.
        grace_s: Seconds to wait for a comparison after a stop.
        confirm_s: Seconds to wait for a last verdict after a stop; with 0, none is asked for.

    Raises:
        ValueError: if `outstanding` is not positive, or the evaluator cannot judge in two stages.
    """

    def __init__(
        self,
        *,
        problem: Problem,
        evaluator: KernelEvaluator,
        budget: Budget,
        work: InFlight,
        outstanding: int,
        race: bool,
        pairs_with_seed: bool,
        grace_s: float,
        confirm_s: float,
    ) -> None:
        if outstanding < 1:
            raise ValueError(f"outstanding is {outstanding}; it must be 1 or more")
        if race and not isinstance(evaluator, RacingEvaluator):
            name = type(evaluator).__name__
            raise ValueError(f"race=true: the evaluator {name} cannot judge in two stages; set race=false")
        self._racing = evaluator if race and isinstance(evaluator, RacingEvaluator) else None
        self._beside = evaluator if pairs_with_seed and isinstance(evaluator, TimesCompanions) else None
        if pairs_with_seed and self._beside is None:
            logger.warning("pair_with_seed=true has no effect: this search's evaluator cannot do it")
        self._problem, self._evaluator = problem, evaluator
        self._budget, self._work = budget, work
        self._grace_s, self._confirm_s = grace_s, confirm_s
        self._asking = 0
        """The number of requests in flight that need a device."""
        self._slots = asyncio.Semaphore(outstanding)
        self._failed_comparisons: set[frozenset[str]] = set()
        """The sets of kernel ids for which a session gave no result."""

    @property
    def races(self) -> bool:
        """Whether kernels are judged in two stages."""
        return self._racing is not None

    def awaited(self) -> list[str] | None:
        """The verdicts for which the evaluator waits outside; None while it works on others itself."""
        verdicts = self._evaluator.awaited() if isinstance(self._evaluator, WaitsOutside) else []
        return None if len(verdicts) < self._asking else sorted(verdicts)

    async def asked(self, request: Awaitable[Result]) -> Result:
        """The answer to a request that needs a device; counts those in flight."""
        self._asking += 1
        try:
            return await request
        finally:
            self._asking -= 1

    async def verdict(
        self, kernel: Kernel, threshold: Threshold, seed: Kernel | None, on_stage: OnStage
    ) -> Evaluation | None:
        """The verdict on a kernel, where that is wanted together with its seed; None if the run was stopped
        or its time was up before a device was free. `threshold`: in a race, the speedup from which the kernel
        is judged in full."""

        def ask(say: OnStage) -> Awaitable[Evaluation]:
            def both(stage: str) -> None:
                say(stage)
                on_stage(stage)

            if seed is None or seed.id == kernel.id or self._beside is None or self.races:
                return self._judged(kernel, threshold, both)
            return self._beside.evaluate_beside(self._problem, kernel, [seed], on_stage=both)

        return await self._in_time(ask)

    async def probe(self, kernel: Kernel) -> Probe | None:
        """The result of a probe; None if the run was stopped or its time was up before a device was free.
        Raises TypeError if the evaluator times no probes."""
        timer = self._evaluator
        if not isinstance(timer, ProbeTimer):
            raise TypeError(f"evaluator {type(timer).__name__} times no probes")
        return await self._in_time(lambda say: timer.probe(self._problem, kernel, on_stage=say))

    async def comparison(self, kernels: Sequence[Kernel]) -> list[Evaluation] | None:
        """What is measured of these kernels in one session; None if that gave no result or did not take
        place."""
        asked = frozenset(kernel.id for kernel in kernels)
        if asked in self._failed_comparisons or self._work.stop is not None or self._budget.timed_out:
            return None
        comparing = self.asked(self._evaluator.compare(self._problem, kernels))
        found = await self._finished(comparing, f"compare {len(kernels)} kernels", self._grace_s)
        if found is None:
            return None
        failures = [each for each in found if not each.status.is_of_the_kernel]
        if len(found) - len(failures) < 2:
            self._failed_comparisons.add(asked)
            logger.warning("%d kernels could not be compared: %s", len(kernels), failures[0].cause)
            return None
        return found

    async def last_in_full(self, kernel: Kernel, name: str) -> Evaluation | None:
        """The full verdict on an outpaced kernel at the end of the run; see `_last`."""
        return await self._last(lambda: self._judged(kernel, IN_FULL), name)

    async def last_thorough(self, kernel: Kernel, name: str) -> Evaluation | None:
        """The thorough verdict on the winner at the end of the run; see `_last`."""
        return await self._last(lambda: self._evaluator.evaluate(self._problem, kernel, thorough=True), name)

    def _judged(
        self, kernel: Kernel, threshold: Threshold, on_stage: OnStage | None = None
    ) -> Awaitable[Evaluation]:
        if self._racing is not None:
            return self._racing.race(self._problem, kernel, threshold=threshold, on_stage=on_stage)
        return self._evaluator.evaluate(self._problem, kernel, on_stage=on_stage)

    async def _in_time(self, ask: Callable[[OnStage], Awaitable[Result]]) -> Result | None:
        """What the evaluator answers; None if the run was stopped or its time was up before a device was
        free. `ask` gets a function to call with each stage."""
        async with self._slots:
            if self._work.stop is not None or self._budget.timed_out:
                return None
            limit = asyncio.timeout(self._budget.remaining_s)

            def on_stage(stage: str) -> None:
                if stage in ("waiting", "measuring"):
                    limit.reschedule(None)

            try:
                async with limit:
                    return await self.asked(ask(on_stage))
            except TimeoutError:
                if not limit.expired():
                    raise
                return None

    async def _last(self, ask: Callable[[], Awaitable[Evaluation]], name: str) -> Evaluation | None:
        """The answer to a request at the end of the run, for which a stop leaves `confirm_s`; None if there
        is no time for it."""
        if self._work.stops_at_once or (self._work.stop is not None and self._confirm_s <= 0):
            return None
        return await self._finished(self.asked(ask()), name, self._confirm_s)

    async def _finished(
        self, request: Coroutine[Any, Any, Result], name: str, wait_s: float
    ) -> Result | None:
        """The answer to a request, for which a stop leaves `wait_s` seconds; None if it failed or was
        cancelled."""
        task = self._work.spawn(request, name)
        await self._work.drain(wait_s)
        return None if task.cancelled() or task.exception() is not None else task.result()
