"""What `benchmarks/operators.py` measured at each shape, and its tables."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.operator_cases import Case
from benchmarks.operator_timing import EAGER
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Timing
from evaluators.records.timing import is_steady, paired_speedup
from kernel_library.catalogue.entry import AtShape
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.shape_table import at_shape
from kernel_library.overrides.shapes import shape_text

EVEN = 0.02
"""Tolerance for "even", as a share of the fastest peer's time."""
COLUMNS = (
    "family",
    "sizes",
    "dtype",
    "kernel",
    "used",
    "ms",
    "forward_ms",
    "saved_mib",
    "speedup_over_eager",
    "low",
    "high",
    "status",
    "remark",
)


@dataclass(frozen=True)
class Row:
    """What was measured of a case: each kernel's evaluation, those of the library's by their ids, the others'
    by their names."""

    case: Case
    ours: dict[str, Evaluation]
    peers: dict[str, Evaluation]

    @property
    def found(self) -> dict[str, Evaluation]:
        """All evaluations."""
        return {**self.ours, **self.peers}

    @property
    def eager_ms(self) -> float | None:
        """Timing of the session; None where nothing was timed."""
        return next((each.timing.eager_ms for each in self.found.values() if each.timing), None)

    @property
    def is_steady(self) -> bool:
        """Whether the times are reliable."""
        return all(is_steady(each.timing) for each in self.found.values() if each.timing)

    @property
    def entry(self) -> str:
        """The library kernel that is used; "" for the original."""
        times = {
            id: each.timing.kernel_ms
            for id, each in self.ours.items()
            if each.timing and each.timing.speedup_low > 1
        }
        return min(times, key=times.__getitem__, default="")

    @property
    def timing(self) -> Timing | None:
        """Timing of the kernel that is used; None where the original runs."""
        return self.ours[self.entry].timing if self.entry else None

    @property
    def ours_ms(self) -> float | None:
        """Time of the kernel that is used, or eager's."""
        return self.timing.kernel_ms if self.timing else self.eager_ms

    @property
    def others_ms(self) -> dict[str, float]:
        """Times of all timed peers, and eager's."""
        times = {name: each.timing.kernel_ms for name, each in self.peers.items() if each.timing}
        return times | ({EAGER: self.eager_ms} if self.eager_ms else {})

    @property
    def ahead(self) -> tuple[str, float, float, float] | None:
        """The fastest of the others, and how many times as fast as that we are, with the interval; None
        where nothing was timed."""
        others = self.others_ms
        if not others:
            return None
        name = min(others, key=others.__getitem__)
        theirs = self.peers[name].timing if name != EAGER else None
        if self.timing is None:  # the original is used
            if theirs is None:
                return name, 1.0, 1.0, 1.0
            return name, *paired_speedup(theirs.eager_samples_ms, theirs.kernel_samples_ms)
        samples = theirs.kernel_samples_ms if theirs else self.timing.eager_samples_ms
        return name, *paired_speedup(self.timing.kernel_samples_ms, samples)

    @property
    def is_even(self) -> bool:
        """Whether we are ahead of the fastest peer or even with it."""
        ahead = self.ahead
        return ahead is not None and (ahead[3] >= 1.0 or ahead[1] >= 1.0 - EVEN)

    @property
    def line(self) -> str:
        """Of the table."""
        ahead = self.ahead
        if ahead is None:
            said = ", ".join(f"{name}: {each.status.value} {each.cause}" for name, each in self.found.items())
            return f"{self.case.name}: no times: {said}"
        name, ratio, low, high = ahead
        others = "  ".join(f"{other} {ms:.4f}" for other, ms in self.others_ms.items())
        slower = [
            f"{id} {each.timing.kernel_ms:.4f}"
            for id, each in self.ours.items()
            if id != self.entry and each.timing
        ]
        failed = [f"{name} {each.status.value}" for name, each in self.found.items() if not each.timing]
        words = [
            f"{ratio:6.3f}x [{low:.3f}, {high:.3f}] of {name:<8}",
            f"{'' if self.is_even else 'BEHIND '}{self.case.name}: {self.entry or 'the original'}",
            f"{self.ours_ms:.4f} ms; {others}",
            *slower,
            *failed,
        ]
        return "  ".join(words)


def in_json(found: dict[str, Evaluation]) -> dict[str, Any]:
    """By the same names."""
    return {name: each.to_json() for name, each in found.items()}


def stored(cases: Sequence[Case], kept: JsonlStore) -> list[Row]:
    """The rows of the cases that were measured before."""
    return [row_of(case, found) for case in cases if (found := kept.get(case.name))]


def row_of(case: Case, known: dict[str, Any]) -> Row:
    """The stored row of a case."""
    ours, peers = (
        {name: Evaluation.from_json(each) for name, each in known[whose].items()}
        for whose in ("ours", "peers")
    )
    return Row(case, ours, peers)


def merge(kept: JsonlStore, other: Path, names: Sequence[str]) -> None:
    """Adds another file's measurements of these shapes. Raises UsageError."""
    if not other.is_file():
        raise UsageError(f"merge={other}: there is no such file")
    found = JsonlStore(other)
    for name in names:
        if kept.get(name) is None and (value := found.get(name)) is not None:
            kept.put(name, value)


def keep(library: FolderLibrary, rows: Sequence[Row]) -> None:
    """Adds the measurements to the shape tables of the library's entries."""
    tables: dict[str, list[AtShape]] = {}
    for row in rows:
        inputs = " ".join(map(shape_text, row.case.shapes))
        for id, each in row.ours.items():
            if each.timing:
                tables.setdefault(id, []).append(at_shape(row.case.to_problem(), inputs, each))
    for id, table in tables.items():
        library.save_shapes(id, table)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line per operator, and the shapes where we are behind."""
    columns = f"{'operator':<15}{'shapes':>7}{'ours':>6}{'ahead or even':>15}"
    yield f"{columns}{'over eager':>12}{'over the best':>15}"
    for op in dict.fromkeys(row.case.operator.op for row in rows):
        own = [row for row in rows if row.case.operator.op == op and row.ahead]
        if own:
            even = sum(row.is_even for row in own)
            eager = geometric_mean((row.eager_ms or 1.0) / (row.ours_ms or 1.0) for row in own)
            best = geometric_mean(row.ahead[1] for row in own if row.ahead)
            ours = sum(bool(row.entry) for row in own)
            yield (f"{op:<15}{len(own):>7}{ours:>6}{even / len(own):>15.0%}{eager:>11.2f}x{best:>14.2f}x")


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """All measurements as CSV, a line for each kernel at each shape."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerows(lines_of(row))


def lines_of(row: Row) -> Iterator[list[object]]:
    """The lines of the table for a shape, that of eager PyTorch first."""
    case = row.case
    sizes = " ".join(f"{name}={size}" for name, size in case.sizes.items())
    start = [case.operator.op, sizes, case.dtype]
    passes = next((each.passes for each in row.found.values() if each.passes), None)
    if row.eager_ms is not None:
        of_passes = [passes.eager_forward_ms, passes.eager_saved_bytes / 2**20] if passes else ["", ""]
        yield [*start, EAGER, not row.entry, row.eager_ms, *of_passes, 1, 1, 1, "", ""]
    for name, each in row.found.items():
        timing, passes = each.timing, each.passes
        of_passes = [passes.forward_ms, passes.saved_bytes / 2**20] if passes else ["", ""]
        numbers: list[object] = [""] * 6
        if timing is not None:
            speedup = timing.speedup, timing.speedup_low, timing.speedup_high
            numbers = [timing.kernel_ms, *of_passes, *speedup]
        yield [*start, name, name == row.entry, *numbers, each.status.value, each.log]


def saved(rows: Sequence[Row]) -> Iterator[str]:
    """For each family, what the used kernels and the others save between the passes, as a share of what eager
    PyTorch saves: the median over the shapes. Nothing where only forward passes were measured."""
    rows = [row for row in rows if row.case.operator.backward]
    if not rows:
        return
    yield "saved between the passes, as a share of eager's (median over shapes; in all, MiB)"
    for op in dict.fromkeys(row.case.operator.op for row in rows):
        shares: dict[str, list[float]] = {}
        totals: dict[str, float] = {}
        for row in (row for row in rows if row.case.operator.op == op):
            used = {"library": row.ours[row.entry]} if row.entry else {}
            for name, each in (used | row.peers).items():
                if each.passes is not None:
                    eager = each.passes.eager_saved_bytes
                    shares.setdefault(name, []).append(each.passes.saved_bytes / eager if eager else 1.0)
                    totals[name] = totals.get(name, 0.0) + each.passes.saved_bytes / 2**20
        yield f"{op:<22}" + "  ".join(
            f"{name} {median(each):.2f} ({totals[name]:.0f})" for name, each in shares.items()
        )
    yield ""


def behind(rows: Sequence[Row]) -> Iterator[str]:
    """The shapes where the library is behind, and by how much, the worst first."""
    some = [row for row in rows if row.ahead and not row.is_even]
    for row in sorted(some, key=lambda row: row.ahead[1] if row.ahead else 1.0):
        assert row.ahead is not None
        yield f"behind: {row.case.name}: {row.ahead[1]:.3f}x of {row.ahead[0]}"
    compared = [row.ahead[1] for row in rows if row.ahead]
    even = sum(row.is_even for row in rows if row.ahead)
    if compared:
        yield (
            f"ahead or even (within {EVEN:.0%}) at {even} of {len(compared)} shapes; "
            f"{geometric_mean(compared):.2f}x of the fastest peer"
        )
