"""Where the time goes when a problem is opened, step by step: the clock, the record, the table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class OpeningStep(StrEnum):
    """What is done when a problem is opened, by the worker or in the judge process."""

    STARTING = "starting the evaluator's processes"
    ENDING = "ending the runners of the problem before"
    FORKING = "forking the baseline"
    CLOSING = "closing the problem before"
    LOADING = "loading the reference"
    LOOKING = "what the reference does besides"
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
    """A clock of steps. One within another stops the outer one's meanwhile; what is in none is `REST`."""

    def __init__(self, synchronize: Callable[[], None] | None = None) -> None:
        """`synchronize` waits for the device, so that a step has the work that it began. The clock runs from
        now on."""
        self._synchronize = synchronize or (lambda: None)
        self._seconds: dict[str, float] = {}
        self._current: str = OpeningStep.REST
        self._since = time.monotonic()

    @contextmanager
    def step(self, step: str) -> Iterator[None]:
        """The block is this step, an `OpeningStep` where a problem is opened."""
        outer = self._current
        self._enter(step)
        try:
            yield
        finally:
            self._enter(outer)

    def seconds(self) -> dict[str, float]:
        """Of each step up to now."""
        self._enter(self._current)
        return dict(self._seconds)

    def _enter(self, step: str) -> None:
        self._synchronize()
        now = time.monotonic()
        self._seconds[self._current] = self._seconds.get(self._current, 0.0) + now - self._since
        self._current, self._since = step, now


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How a problem was opened: its name, and the seconds of each step, by `OpeningStep`'s values."""

    problem: str
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """From the order to the answer."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, from which `from_json` restores an equal record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Opening:
        """Raises TypeError when `data` is not what `to_json` writes."""
        return cls(**data)


def joined(worker: Mapping[str, float], judge: Mapping[str, float]) -> dict[str, float]:
    """The seconds of both processes: the worker's rest is what it has waited for the judge process."""
    rest = OpeningStep.REST.value
    waited_s = worker.get(rest, 0.0)
    found = {**worker, **judge}
    found[rest] = judge.get(rest, 0.0) + max(waited_s - sum(judge.values()), 0.0)
    return found


def table(found: Sequence[Opening]) -> list[str]:
    """Where the time of some openings goes: of each step the median and the worst, in s, and its share of all
    their time, the largest first."""
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
