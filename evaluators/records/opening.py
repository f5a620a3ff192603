"""Where the time goes while a problem is opened: the clock, the record, the table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from evaluators.base.json_record import JsonRecord


class OpeningStep(StrEnum):
    """A step of opening a problem, in the worker or in the judge process. Result files have these values."""

    STARTING = "starting the evaluator's processes"
    ENDING = "ending the runners of the problem before"
    FORKING = "forking the baseline"
    CLOSING = "closing the problem before"
    LOADING = "loading the reference"
    LOOKING = "what the reference does in addition"
    TIMING = "the reference's rough time"
    COUNTING = "counting operations"
    DISTRIBUTIONS = "usable distributions"
    SHIFTS = "shifts by a rounding"
    LAZY_ANSWERS = "lazy answers"
    PEAKS = "the machine's peaks"
    BUFFERS = "shared buffers"
    BASELINE = "the baseline's load"
    WARMING = "the baseline's first call"
    ATTRIBUTION = "the libraries' kernels"
    CALIBRATION = "calibration"
    REST = "the rest"


class Steps:
    """A clock that adds up the time of each step. A nested step pauses the outer one. Time outside all steps
    counts as `rest`."""

    def __init__(
        self, synchronize: Callable[[], None] | None = None, *, rest: str = OpeningStep.REST
    ) -> None:
        """Starts the clock. `synchronize` waits for the device, so that each step includes the work that it
        queued."""
        self._synchronize = synchronize or (lambda: None)
        self._seconds: dict[str, float] = {}
        self._current = rest
        self._since = time.monotonic()

    @contextmanager
    def step(self, step: str) -> Iterator[None]:
        """Counts the block as this step: an `OpeningStep` while a problem is opened, a `Stage` while a kernel
        is judged."""
        outer = self._current
        self._enter(step)
        try:
            yield
        finally:
            self._enter(outer)

    def seconds(self) -> dict[str, float]:
        """The seconds of each step so far."""
        self._enter(self._current)
        return dict(self._seconds)

    def _enter(self, step: str) -> None:
        self._synchronize()
        now = time.monotonic()
        self._seconds[self._current] = self._seconds.get(self._current, 0.0) + now - self._since
        self._current, self._since = step, now


@dataclass(frozen=True, kw_only=True)
class Opening(JsonRecord):
    """One opening of a problem: the problem's name, and the seconds of each step by `OpeningStep`'s
    values."""

    problem: str
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """Seconds from the request to the answer."""
        return sum(self.seconds.values())


def joined(worker: Mapping[str, float], judge: Mapping[str, float]) -> dict[str, float]:
    """The seconds of both processes. The worker's REST is the time in which it waited for the judge
    process."""
    rest = OpeningStep.REST.value
    waited_s = worker.get(rest, 0.0)
    found = {**worker, **judge}
    found[rest] = judge.get(rest, 0.0) + max(waited_s - sum(judge.values()), 0.0)
    return found


def table(found: Sequence[Opening]) -> list[str]:
    """A table of several openings: each step's median and worst time in s and its share of the total, largest
    first."""
    if not found:
        return ["no problem was opened"]
    whole_s = sum(each.total_s for each in found) or 1.0
    rows = []
    for step in OpeningStep:
        times = [each.seconds.get(step.value, 0.0) for each in found]
        if any(times):
            rows.append((sum(times), step.value, statistics.median(times), max(times)))
    rows.sort(reverse=True)
    totals = [each.total_s for each in found]
    rows.append((sum(totals), "all", statistics.median(totals), max(totals)))
    slowest = max(found, key=lambda each: each.total_s)
    return [
        f"{'where the time of opening goes':<44}{'median s':>9}{'worst s':>9}{'share':>7}",
        *(f"{name:<44}{mid:>9.3f}{most:>9.3f}{sum_s / whole_s:>7.0%}" for sum_s, name, mid, most in rows),
        f"{len(found)} problems; the slowest is {slowest.problem}",
    ]
