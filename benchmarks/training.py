"""Compares the library's kernels for training over 20 shapes for each of nine families with eager PyTorch,
torch.compile, Liger, QuACK and cuDNN: forward and backward together.

    python benchmarks/training.py [device=auto] [only=softmax,attention] [part=1/2]
        [peers=compile,liger,quack,cudnn] [limit_s=540] [out=training.jsonl] [merge=a.jsonl,b.jsonl]
        [keep=outputs/library] [at_once=16]

The families and shapes are in `benchmarks/training_cases.py`. For each shape, one process measures the
library's kernels with a backward pass, the peers and eager PyTorch in turn, in the calls that a program makes
(autograd included), as `benchmarks/operator_timing.py` describes. Before that, each is compared with the
outputs and all gradients in float64; one that is not correct has no time. Liger and QuACK are used if they
are installed (`pip install liger-kernel quack-kernels`); `benchmarks/peers/training` calls them, QuACK
without its autotuner. torch.compile compiles both passes in its default mode. Losses are means over rows,
whose gradient is 1 when they are timed. The rotary embedding turns queries and keys.

As `kernel_library.best(..., backward=True)` does, the benchmark takes the fastest of our kernels that is
significantly faster than eager; where there is none, the original runs and counts as eager.

`out` keeps the measurements, a line per shape, and a second call continues there; a table of all of them is
written next to it as CSV. `merge` adds other files' lines; with `limit_s=0` nothing is measured, and no GPU
is needed. `part=1/2` takes every second family. Batches of `at_once` shapes are prepared at once, with up to
10 GB for each; a shape with unsteady times is measured once more. `keep` is the root of a library whose shape
tables get the measurements as well (`kernel_library/seeds`: the ones that ship), by which
`best(..., backward=True)` chooses.

Prints a line per shape, and for each family the share of shapes where the library is ahead of the fastest
peer or even with it (within EVEN of its time, or the interval contains 1.00), where it is behind, and what is
saved between the passes. `device=cpu` tries the benchmark at small sizes. The exit status is 1 when a kernel
of ours was not correct.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.operator_timing import EAGER
from benchmarks.operators import EVEN, Row, keep, measure, stored, summary
from benchmarks.training_cases import training_cases
from evaluators.app.command import choose_device
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.usage_error import UsageError
from kernel_library.catalogue.library import FolderLibrary

READY_S = 150.0
"""Time limit for the preparation of a batch."""
PEERS = ("compile", "liger", "quack", "cudnn")
KEYS = ("device", "only", "part", "peers", "limit_s", "out", "merge", "keep", "at_once")
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


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - set(KEYS):
        raise UsageError(f"unknown key {min(unknown)}; known are {', '.join(KEYS)}")
    limit_s = float(given.get("limit_s", "540"))
    device = given.get("device", "auto")
    if limit_s:
        device, _ = choose_device(device, clustered=False)
    peers = [name for name in given.get("peers", ",".join(PEERS)).split(",") if name]
    families = part_of(
        list(dict.fromkeys(case.operator.op for case in training_cases(device))), given.get("part", "1/1")
    )
    words = given.get("only", "").split(",")
    cases = [
        case
        for case in training_cases(device)
        if case.operator.op in families and any(word in case.name for word in words)
    ]
    if not cases:
        raise UsageError(f"only={given.get('only', '')}: no shape's name contains it")
    out = Path(given.get("out", "outputs/training.jsonl"))
    kept = JsonlStore(out)
    for other in filter(None, given.get("merge", "").split(",")):
        merge(kept, Path(other), [case.name for case in cases])
    at_once = int(given.get("at_once", "16"))
    if limit_s:
        rows = measure(training_cases, cases, peers, kept, limit_s, at_once, READY_S)
    else:
        rows = stored(cases, kept)
    write_table(out.with_suffix(".csv"), rows)
    print("", *summary(rows), "", *saved(rows), sep="\n")
    print("", *behind(rows), f"{len(cases) - len(rows)} not measured in time", sep="\n")
    if "keep" in given:
        keep(FolderLibrary(given["keep"], seeds=None), rows)
    return 1 if any(not each.timing for row in rows for each in row.ours.values()) else 0


def part_of(families: Sequence[str], part: str) -> Sequence[str]:
    """The i-th of n parts, for `i/n`. Raises UsageError."""
    first, _, count = part.partition("/")
    if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise UsageError(f"part={part}: give i/n, such as 1/2")
    return families[int(first) - 1 :: int(count)]


def merge(kept: JsonlStore, other: Path, names: Sequence[str]) -> None:
    """Adds another file's measurements of these shapes. Raises UsageError."""
    if not other.is_file():
        raise UsageError(f"merge={other}: there is no such file")
    found = JsonlStore(other)
    for name in names:
        if kept.get(name) is None and (value := found.get(name)) is not None:
            kept.put(name, value)


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
    if row.eager_ms is not None and passes is not None:
        saved_mib = passes.eager_saved_bytes / 2**20
        yield [
            *start,
            EAGER,
            not row.entry,
            row.eager_ms,
            passes.eager_forward_ms,
            saved_mib,
            1,
            1,
            1,
            "",
            "",
        ]
    for name, each in row.found.items():
        timing, passes = each.timing, each.passes
        numbers: list[object] = [""] * 6
        if timing is not None and passes is not None:
            numbers = [timing.kernel_ms, passes.forward_ms, passes.saved_bytes / 2**20]
            numbers += [timing.speedup, timing.speedup_low, timing.speedup_high]
        yield [*start, name, name == row.entry, *numbers, each.status.value, each.log]


def saved(rows: Sequence[Row]) -> Iterator[str]:
    """For each family, what the used kernels and the others save between the passes, as a share of what eager
    PyTorch saves: the median over the shapes."""
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


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"training.py: {error}")
