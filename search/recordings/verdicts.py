"""Recorded runs that ship with the package, and the evaluator that returns recorded verdicts, so that a run
whose ideas are replayed repeats exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.race import Threshold, after_quick_stage, reaches
from search.recordings.archives import SUFFIX, unpacked
from search.records.run_state import RunState
from search.records.tree import Variant

RECORDINGS = Path(__file__).parent
"""The folder of the shipped recordings."""


def shipped_recordings() -> list[str]:
    """The names of the recordings that ship with the package."""
    folders = (each.parent for each in RECORDINGS.glob("**/journal.jsonl"))
    places = (*folders, *RECORDINGS.glob(f"**/*{SUFFIX}"))
    return sorted(each.relative_to(RECORDINGS).as_posix().removesuffix(SUFFIX) for each in places)


def recording_folder(run: str) -> Path:
    """The folder of a recorded run, which may be packed, or of several. Shipped recordings may be given by
    their name, or by their path in a checkout. Raises UsageError if a packed run cannot be read."""
    place, shipped = Path(run), (RECORDINGS / run, RECORDINGS / Path(run).name)
    known = [place, *shipped, *(each.with_name(f"{each.name}{SUFFIX}") for each in shipped)]
    found = next((each for each in known if each.exists()), place)
    return unpacked(found) if found.is_file() else found


class RecordedEvaluations:
    """Returns the recorded verdict of each kernel, by kernel id, from the first of several runs that has one.
    With `final_as_measured`, a kernel without a final measurement has its first verdict instead."""

    def __init__(self, *runs: RunState, final_as_measured: bool = False) -> None:
        self._verdicts = _joined(run.verdicts for run in runs)
        self._quick = _joined(run.quick for run in runs)
        self._confirmed = _joined(run.confirmed for run in runs)
        if final_as_measured:
            filled_in = _joined(_filled_in(run) for run in runs)
            self._confirmed = self._verdicts | filled_in | self._confirmed
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
        """The recorded verdict; an infrastructure error if there is none."""
        found = (self._confirmed if thorough else self._verdicts).get(kernel.id)
        if found is None or found.status is Status.OUTPACED:
            missing = "final measurement" if thorough else "verdict" if found is None else "full verdict"
            log = f"the recording has no {missing} for kernel {kernel.id}"
            return Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=log)
        return found

    async def race(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        threshold: Threshold,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """The recorded verdict of the stage that the threshold leads to. Where the recording has no quick
        stage, its verdict is taken for one."""
        full = await self.evaluate(problem, kernel, on_stage=on_stage)
        quick = self._quick.get(kernel.id) or after_quick_stage(full, threshold)
        return full if threshold == 0 or reaches(quick, threshold) else quick

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """The recorded comparison of exactly these kernels; infrastructure errors if there is none."""
        ids = [kernel.id for kernel in kernels]
        for each in self._compared:
            if set(ids) == set(each.evaluations):
                return [each.evaluations[id] for id in ids]
        log = f"the recording has no comparison of the kernels {', '.join(ids)}"
        return [Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=log) for _ in kernels]


def recorded_repair(recorded: Sequence[Variant], failed: Variant) -> Kernel | None:
    """The kernel that repaired an equal kernel among the `recorded` variants of the same idea."""
    was = {variant.id for variant in recorded if variant.kernel.id == failed.kernel.id}
    return next((variant.written for variant in recorded if variant.repairs in was), None)


def _filled_in(run: RunState) -> dict[str, Evaluation]:
    """The verdicts on kernels whose values were filled in, by kernel id."""
    variants = [each for each in run.tree.variants.values() if each.declared is not None]
    return {each.kernel.id: each.evaluation for each in variants if each.evaluation is not None}


def _joined(verdicts: Iterable[Mapping[str, Evaluation]]) -> dict[str, Evaluation]:
    joined: dict[str, Evaluation] = {}
    for each in verdicts:
        joined = {**each, **joined}
    return joined
