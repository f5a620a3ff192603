"""A probe: a kernel that is only built and timed, to learn what limits another kernel.

Nobody compares its outputs, so it may leave out stores or arithmetic. Its result has a separate type, which
has no status `correct` and cannot be turned into an `Evaluation`: a probe is never a variant, a seed or a
winner.
"""

from __future__ import annotations

import ast
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from evaluators.base.cause import cause_of, printable
from evaluators.base.json_record import JsonRecord
from evaluators.records.evaluation import NOT_HERE, Status
from evaluators.records.time_spent import DeviceLease
from evaluators.records.timing import interval, paired_speedup

MOST_MARKS = 18
"""Marks of a trace at most, so that its table has at most 20 lines."""
MOST_WORKERS = 1024
"""Workers of a trace whose timestamps are read, spread evenly over all."""
NAME_CHARACTERS = 40
MARKS, UNIT = "PROBE_MARKS", "PROBE_UNIT"
"""Names in a probe's source: a list with the marks' names, and the unit of the timestamps."""


class ProbeStatus(StrEnum):
    """What became of a probe: `timed`, or why it has no time."""

    TIMED = "timed"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    REJECTED = "rejected"
    DECLINED = "declined"
    UNFIT_REFERENCE = "unfit_reference"
    INFRASTRUCTURE_ERROR = "infrastructure_error"


@dataclass(frozen=True, kw_only=True)
class TraceMarks:
    """The marks that a probe takes timestamps at, and the unit of the timestamps."""

    names: Sequence[str] = ()
    unit: str = "ticks"

    @classmethod
    def of(cls, source: str) -> Self:
        """The marks that a probe's source states in PROBE_MARKS and PROBE_UNIT; none if it states none in a
        form that can be read."""
        try:
            body = ast.parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return cls()
        stated: dict[str, Any] = {}
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name in (MARKS, UNIT):
                    stated[name] = _literal(node.value)
        names, unit = stated.get(MARKS), stated.get(UNIT)
        if not isinstance(names, list | tuple):
            return cls()
        marks = tuple(printable(str(each))[:NAME_CHARACTERS] for each in names[:MOST_MARKS])
        return cls(names=marks, unit=printable(unit)[:NAME_CHARACTERS] if isinstance(unit, str) else cls.unit)


@dataclass(frozen=True, kw_only=True)
class TracedPhase:
    """What follows a mark of a trace, as means over the workers that passed it.

    Attributes:
        name: The mark's name.
        workers: The number of workers that passed it.
        start: The time from the worker's first mark to this one.
        length: The time to the next mark that the worker passed; None if this is the last one.
    """

    name: str
    workers: int
    start: float
    length: float | None


@dataclass(frozen=True, kw_only=True)
class ProbeTrace(JsonRecord):
    """The timestamps of one call of a probe as a timeline. `workers`: all workers of the call; `unit`: of the
    times."""

    unit: str
    workers: int
    phases: tuple[TracedPhase, ...]

    @classmethod
    def of(cls, marks: TraceMarks, timestamps: Sequence[Sequence[int]], workers: int) -> Self:
        """The timeline of timestamps with a row for each worker and a column for each mark; a further column
        is the end. A timestamp of 0 says that the worker did not pass the mark."""
        starts: dict[int, list[int]] = {}
        lengths: dict[int, list[int]] = {}
        for row in timestamps:
            passed = [(mark, at) for mark, at in enumerate(row) if at]
            for (mark, at), (_, following) in itertools.pairwise(passed):
                lengths.setdefault(mark, []).append(following - at)
            for mark, at in passed:
                starts.setdefault(mark, []).append(at - passed[0][1])
        phases = (
            TracedPhase(
                name=name,
                workers=len(starts[mark]),
                start=statistics.fmean(starts[mark]),
                length=statistics.fmean(lengths[mark]) if mark in lengths else None,
            )
            for mark, name in enumerate(marks.names)
            if mark in starts
        )
        return cls(unit=marks.unit, workers=workers, phases=tuple(phases))

    def text(self) -> str:
        """The timeline as a table of at most 20 lines."""
        width = max((len(each.name) for each in self.phases), default=0)
        lines = [
            f"Trace of {self.workers} workers, means in {self.unit} after each worker's first mark:",
            f"{'phase':<{width}}  {'start':>10}  {'length':>10}  workers",
        ]
        for each in self.phases:
            length = "" if each.length is None else f"{each.length:,.0f}"
            lines.append(f"{each.name:<{width}}  {each.start:>10,.0f}  {length:>10}  {each.workers:>7}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class ProbeTimes(JsonRecord):
    """A probe's time, measured in blocks that alternate with eager PyTorch's.

    Attributes:
        call_ms: The median time per call.
        low_ms: Lower end of its 95 % interval.
        high_ms: Upper end of its 95 % interval.
        eager_ms: Eager PyTorch's median time per call.
        ratio: Median of the paired ratios eager / probe. Kernels of other sessions have the same ratio as
            their speedup.
        ratio_low: Lower end of the ratio's 95 % interval.
        ratio_high: Upper end of the ratio's 95 % interval.
    """

    call_ms: float
    low_ms: float
    high_ms: float
    eager_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float

    @classmethod
    def of(cls, probe_ms: Sequence[float], eager_ms: Sequence[float]) -> Self:
        """The times from paired samples in ms per call. Raises ValueError for too few samples."""
        call_ms, low_ms, high_ms = interval(probe_ms, statistics.median(probe_ms))
        ratio, ratio_low, ratio_high = paired_speedup(probe_ms, eager_ms)
        return cls(
            call_ms=call_ms,
            low_ms=low_ms,
            high_ms=high_ms,
            eager_ms=statistics.median(eager_ms),
            ratio=ratio,
            ratio_low=ratio_low,
            ratio_high=ratio_high,
        )

    def text(self) -> str:
        """The times in one line."""
        return (
            f"{self.call_ms:.4g} ms a call [{self.low_ms:.4g}, {self.high_ms:.4g}]; eager takes "
            f"{self.eager_ms:.4g} ms, {self.ratio:.3g} times as long [{self.ratio_low:.3g}, "
            f"{self.ratio_high:.3g}]"
        )


@dataclass(frozen=True, kw_only=True)
class Probe(JsonRecord):
    """The result of a probe.

    Attributes:
        status: What became of it.
        log: Remarks on the times or, if there are none, what happened.
        times: The times; present only if the status is `timed`.
        trace: The timeline of one call, if the probe takes timestamps.
        device_s: Seconds for which the probe occupied the device.
        build_s: Seconds of the build.
        lease: How long it waited for the device, and held it; None if that is not known.

    Raises:
        ValueError: The times are missing from a `timed` probe, or another one has times or a trace.
    """

    status: ProbeStatus
    log: str = ""
    times: ProbeTimes | None = None
    trace: ProbeTrace | None = None
    device_s: float = 0.0
    build_s: float = 0.0
    lease: DeviceLease | None = None

    def __post_init__(self) -> None:
        if (self.times is None) == (self.status is ProbeStatus.TIMED):
            raise ValueError("a probe has times exactly when it is timed")
        if self.trace is not None and self.times is None:
            raise ValueError(f"a {self.status.value} probe has a trace")

    @classmethod
    def failed(cls, status: Status, log: str) -> Self:
        """The result of a probe that a kernel's status ended. Raises ValueError for the status of a correct
        kernel, or of one in a race."""
        if status is Status.INCORRECT:  # only a forged message says so: nobody looks at the outputs
            status = Status.REJECTED
        return cls(status=ProbeStatus(status.value), log=log)

    @property
    def is_lasting(self) -> bool:
        """Whether the machine has no part in it: another one would find the same."""
        machines = self.status is ProbeStatus.UNFIT_REFERENCE and self.log.startswith(NOT_HERE)
        return self.status is not ProbeStatus.INFRASTRUCTURE_ERROR and not machines

    @property
    def cause(self) -> str:
        """Why there are no times, in one line from the log."""
        return cause_of(self.log)

    def text(self) -> str:
        """The result for readers, without the log of a failure."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.times is None:
            yield f"{self.status.value}: {self.cause}" if self.cause else self.status.value
            return
        yield self.times.text()
        if self.log:
            yield self.log
        if self.trace is not None:
            yield self.trace.text()


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
