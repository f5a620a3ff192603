"""The evaluator that gives a recorded run's verdicts: with its ideas replayed, it repeats exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from evaluators.evaluation import Evaluation, Status
from evaluators.problem import Kernel, Problem
from search.run_state import RunState


class RecordedEvaluations:
    """Answers by the kernel's id, as the run was answered."""

    def __init__(self, run: RunState) -> None:
        self._verdicts, self._confirmed = run.verdicts, run.confirmed
        self._compared = run.tree.ranking.comparisons
        self._facts = run.started.environment if run.started else {}

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

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """What the recording found when it measured these together; our own failure where it never did."""
        ids = [kernel.id for kernel in kernels]
        for each in self._compared:
            if set(ids) == set(each.evaluations):
                return [each.evaluations[id] for id in ids]
        log = f"the recording never measured the kernels {', '.join(ids)} together"
        return [Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=log) for _ in kernels]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was started."""
