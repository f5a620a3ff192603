"""Profiles a search's kernels on this machine."""

from __future__ import annotations

import asyncio
import logging

from evaluators.base.cause import first_line
from evaluators.device.settings import Settings
from evaluators.profiling.profiler import KernelProfiler, ProfileFailed
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem

logger = logging.getLogger(__name__)


class LocalDiagnoser:
    """Diagnoses kernels one by one, in a thread. `wanted` is the highest level to reach, or `auto`."""

    def __init__(self, settings: Settings, wanted: str) -> None:
        self._profiler, self._wanted = KernelProfiler(settings), wanted
        self._one_at_a_time = asyncio.Lock()

    async def diagnose(self, problem: Problem, kernel: Kernel, evaluation: Evaluation) -> Diagnosis:
        """See `search.protocols.Diagnoser`."""
        timing = evaluation.timing
        try:
            async with self._one_at_a_time:
                return await self._profiler.profile_in_thread(
                    problem,
                    kernel,
                    wanted=self._wanted,
                    roofline=evaluation.roofline,
                    call_ms=timing.kernel_ms if timing is not None else None,
                )
        except (ProfileFailed, OSError) as error:
            logger.warning("kernel %s could not be profiled: %s", kernel.id, first_line(error))
            return Diagnosis(missing={"profile": first_line(error)})
