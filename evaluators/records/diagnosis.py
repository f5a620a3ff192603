"""What a kernel's profile means: bottlenecks with their evidence, and the figures behind them. Records
only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from evaluators.base.json_record import JsonRecord

TEXT_CHARACTERS = 4000
SHOWN_LAUNCHES, SHOWN_UNITS, SHOWN_STALLS, SHOWN_ADVICE, SHOWN_WARNINGS = 6, 2, 4, 3, 6
LEFT_OUT = "[… {} more lines]"
SHORT = 100
"""Most characters of a kernel's name: a template's can have thousands."""


class Level(StrEnum):
    """Where a profile's facts come from, the most telling source last."""

    STATIC = "static"
    """The compiled binary, or the compiler's report."""
    TRACE = "trace"
    """The launches of a call with their times."""
    COUNTERS = "counters"
    """The hardware's counters, read by `ncu`."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A bottleneck.

    Attributes:
        name: The rule's name, such as `bank conflicts`.
        evidence: The numbers that show it, in words.
        confidence: The level of the facts that show it.
        helps: What usually helps.
        share: Estimated part of the run time that the bottleneck costs, 0 to 1. Findings are ranked by it.
        kernel: The kernel that it is about; "" for the whole call.

    Raises:
        ValueError: The share is not between 0 and 1.
    """

    name: str
    evidence: str
    confidence: Level
    helps: str
    share: float
    kernel: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"finding.share is {self.share}; it must be between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """The launches of one kernel in a call: how many, and the mean time of one."""

    kernel: str
    launches: float
    mean_us: float

    @property
    def total_us(self) -> float:
        """Time of all its launches in a call."""
        return self.launches * self.mean_us


@dataclass(frozen=True, kw_only=True)
class BusyUnit:
    """A unit of the GPU, how busy it was in percent of its peak, and which part of it is the busiest."""

    unit: str
    percent: float
    busiest_part: str = ""


@dataclass(frozen=True, kw_only=True)
class WarpStall:
    """Why warps waited: the part of their time, and the source lines or instructions where most of it was
    spent."""

    reason: str
    share: float
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrafficBytes:
    """Bytes that a call moved between the GPU and its memory, and the least possible; None: unknown."""

    read: int | None = None
    written: int | None = None
    least: int | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis(JsonRecord):
    """The diagnosis of one kernel on one device.

    Attributes:
        device: The device's name; "" if unknown.
        reached: The levels whose facts were available.
        missing: Why the other levels are missing, by level.
        findings: The bottlenecks, the most expensive first.
        times: The kernels of a call, the longest first.
        call_us: Time of a call, from the start of the first launch to the end of the last; None: unknown.
        gaps_us: The part of it in which no kernel ran.
        units: The units of the longest kernel, the busiest first.
        stalls: Its warps' waiting, the longest first.
        traffic: Bytes by direction.
        occupancy: The longest kernel's occupancy and what limits it, in words; "" if unknown.
        warnings: What the compiler reported.
        advice: What the vendor's profiler advises about the whole run time, the largest estimate first.
        isolation: The confinement of the profiled process.
        seconds: How long each level took.
    """

    device: str = ""
    reached: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    times: tuple[KernelTime, ...] = ()
    call_us: float | None = None
    gaps_us: float | None = None
    units: tuple[BusyUnit, ...] = ()
    stalls: tuple[WarpStall, ...] = ()
    traffic: TrafficBytes | None = None
    occupancy: str = ""
    warnings: Sequence[str] = ()
    advice: Sequence[str] = ()
    isolation: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    def text(self, characters: int = TEXT_CHARACTERS) -> str:
        """The diagnosis for readers, in whole lines of at most `characters` together."""
        return _whole_lines("\n".join(self._lines()).splitlines(), characters)

    def figures(self) -> Iterable[tuple[str, str]]:
        """What readers need in addition to findings and times, as pairs of a label and its text."""
        for unit in self.units[:SHOWN_UNITS]:
            part = f"; its busiest part: {unit.busiest_part}" if unit.busiest_part else ""
            yield "Busy", f"{unit.unit} {unit.percent:.0f} % of its peak{part}."
        for stall in self.stalls[:SHOWN_STALLS]:
            places = "".join(f"\n   at {place}" for place in stall.places)
            yield "Stall", f"{stall.reason}, {stall.share:.0%} of the warps' time.{places}"
        if self.traffic is not None:
            yield "Memory", _traffic_text(self.traffic)
        if self.occupancy:
            yield "Occupancy", f"{self.occupancy}."
        yield from _some("Compiler", self.warnings, SHOWN_WARNINGS)
        yield from _some("Profiler's advice", self.advice, SHOWN_ADVICE)

    def _lines(self) -> Iterable[str]:
        levels = ", ".join(self.reached) or "none"
        where = f" on {self.device}" if self.device else ""
        yield f"Profile{where}; levels: {levels}."
        for level, why in self.missing.items():
            yield f"No {level}: {why}."
        if not self.findings:
            yield "Bottlenecks: no rule found one."
        for number, each in enumerate(self.findings, 1):
            kernel = f" in {shortened(each.kernel)}" if each.kernel else ""
            yield f"{number}. {each.name}{kernel} ({each.confidence}, costs about {each.share:.0%})"
            yield f"   evidence: {each.evidence}"
            yield f"   usually helps: {each.helps}"
        yield from self._time_lines()
        yield from (f"{label}: {text}" for label, text in self.figures())

    def _time_lines(self) -> Iterable[str]:
        if self.call_us is not None:
            gaps = f", {self.gaps_us:.4g} us of it without a running kernel" if self.gaps_us else ""
            yield f"Call: {self.call_us:.4g} us under the trace{gaps}."
        for each in self.times[:SHOWN_LAUNCHES]:
            launches = f"{each.launches:g} launch{'' if each.launches == 1 else 'es'} per call"
            yield f"Kernel: {shortened(each.kernel)}: {launches}, {each.mean_us:.4g} us each."
        if (more := len(self.times) - SHOWN_LAUNCHES) > 0:
            rest_us = sum(each.total_us for each in self.times[SHOWN_LAUNCHES:])
            yield f"Kernel: {more} more, {rest_us:.4g} us per call together."


def shortened(name: str) -> str:
    """A kernel's name without the middle of a very long one."""
    half = SHORT // 2
    return name if len(name) <= SHORT else f"{name[:half]}…{name[-half:]}"


def _traffic_text(traffic: TrafficBytes) -> str:
    parts = []
    if traffic.read is not None and traffic.written is not None:
        parts.append(f"read {traffic.read / 1e6:.4g} MB, wrote {traffic.written / 1e6:.4g} MB")
    if traffic.least is not None:
        parts.append(f"a call must move at least {traffic.least / 1e6:.4g} MB")
    return f"{'; '.join(parts) or 'unknown'}."


def _some(label: str, lines: Sequence[str], most: int) -> Iterable[tuple[str, str]]:
    yield from ((label, line) for line in lines[:most])
    if (more := len(lines) - most) > 0:
        yield label, f"{more} more."


def _whole_lines(lines: list[str], characters: int) -> str:
    """As many of the first lines as fit, with the number of those left out."""
    if len("\n".join(lines)) <= characters:
        return "\n".join(lines)
    kept: list[str] = []
    room = characters - len(LEFT_OUT.format(len(lines)))
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join([*kept, LEFT_OUT.format(len(lines) - len(kept))])
