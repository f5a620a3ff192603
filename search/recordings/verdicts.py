"""Recorded runs: where they are, and the evaluator that gives their verdicts; with a run's ideas replayed, it
repeats exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from search.records.run_state import RunState

RECORDINGS = Path(__file__).parent
"""Those that are shipped."""


def shipped_recordings() -> list[str]:
    """The names of the recordings that ship with the package."""
    return sorted(each.parent.name for each in RECORDINGS.glob("*/journal.jsonl"))


def recording_folder(run: str) -> Path:
    """The folder of a recorded run, which may be given by the name, or the path in a checkout, of one that is
    shipped."""
    shipped = RECORDINGS / Path(run).name
    return shipped if not Path(run).exists() and shipped.is_dir() else Path(run)


class RecordedEvaluations:
    """Answers by the kernel's id, as the run was answered, or the first one of several that knows it.
    `final_as_measured`: a kernel that was not measured again has its first verdict for a final one, too."""

    def __init__(self, *runs: RunState, final_as_measured: bool = False) -> None:
        self._verdicts = _joined(run.verdicts for run in runs)
        self._confirmed = _joined(run.confirmed for run in runs)
        if final_as_measured:
            self._confirmed = self._verdicts | self._confirmed
        self._compared = [each for run in runs for each in run.tree.ranking.comparisons]
        self._facts = runs[0].started.environment if runs[0].started else {}

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


def _joined(verdicts: Iterable[Mapping[str, Evaluation]]) -> dict[str, Evaluation]:
    joined: dict[str, Evaluation] = {}
    for each in verdicts:
        joined = {**each, **joined}
    return joined
