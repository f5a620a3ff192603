"""The evaluator that gives a recorded run's verdicts: with its ideas replayed, it repeats exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evaluators.evaluation import Evaluation, Status
from evaluators.problem import Kernel, Problem
from search.journal import rebuild, replay


class RecordedEvaluations:
    """Answers by the kernel's id. Raises JournalError or OSError for a folder without a readable journal."""

    def __init__(self, run: Path) -> None:
        state = rebuild(replay(run / "journal.jsonl"))
        self._verdicts, self._confirmed = state.verdicts, state.confirmed
        self._facts = state.started.environment if state.started else {}

    async def describe(self, problem: Problem) -> dict[str, str]:
        """The facts of the device that the recording was made on."""
        return dict(self._facts)

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """The recorded verdict; our own failure where there is none."""
        found = (self._confirmed if thorough else self._verdicts).get(kernel.id)
        if found is None:
            log = (
                f"the recording has no {'final measurement' if thorough else 'verdict'} of kernel {kernel.id}"
            )
            return Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=log)
        return found

    def close(self) -> None:
        """Nothing was started."""
