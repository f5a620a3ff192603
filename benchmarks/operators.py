"""Compares the library's operators over 30 shapes each with eager PyTorch, torch.compile, Liger and QuACK.

    python benchmarks/operators.py [device=auto] [only=softmax,matmul] [peers=compile,liger,quack]
        [limit_s=540] [out=operators.jsonl] [keep=outputs/library]

Each operator has ten shapes in three dtypes (attention: fifteen in two, which its kernels support). For each,
one process measures the library's kernels, the peers and eager PyTorch in turn
(`benchmarks/operator_timing.py`; all of them are trusted, because the evaluator would take ten times as
long). Like `kernel_library.override`, the benchmark takes the fastest of our kernels that is significantly
faster than eager; where there is none, the original runs and counts as eager. Liger and QuACK are used if
they are installed (`pip install liger-kernel quack-kernels`); `benchmarks/peers/operators` calls them.
torch.compile competes in its default mode.

A shape with unsteady times (`evaluators.records.timing.is_steady`) is measured once more, and then left for a
second call.

`out` keeps the measurements, a line per shape, and a second call continues there. `keep` is the root of a
library whose shape tables get them as well; `best` chooses kernels by these tables (`kernel_library/seeds`:
the ones that ship). Prints a line per shape, and for each operator the share of shapes where the library is
ahead of the fastest peer or even with it (within EVEN of its time, or the interval contains 1.00). The exit
status is 1 when a kernel of ours was not correct.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.operator_cases import Case, all_cases
from benchmarks.operator_timing import EAGER, SPAWN, Cases, KernelProcess, kernels_of_case
from evaluators.app.command import choose_device
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Timing
from evaluators.records.timing import is_steady, paired_speedup
from evaluators.scheduler.local_host import visible_gpus
from kernel_library.catalogue.entry import AtShape
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.shape_table import at_shape
from kernel_library.overrides.shapes import shape_text

PEERS = ("compile", "liger", "quack")
EVEN = 0.02
"""Tolerance for "even", as a share of the fastest peer's time."""
MOST_AT_ONCE = 12
"""Processes prepared concurrently on a GPU; some use 8 GB of its memory until they are measured."""
READY_S = 240.0
"""Time limit for the preparation, including builds of our kernels."""
Started = tuple[Case, KernelProcess]


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


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {"device", "only", "peers", "limit_s", "out", "keep"}:
        raise UsageError(f"unknown key {min(unknown)}; known are device, only, peers, limit_s, out, keep")
    device, _ = choose_device(given.get("device", "auto"), clustered=False)
    names = [name for name in given.get("peers", ",".join(PEERS)).split(",") if name]
    words = given.get("only", "").split(",")
    cases = [case for case in all_cases(device) if any(word in case.name for word in words)]
    if not cases:
        raise UsageError(f"only={given.get('only', '')}: no case's name contains it")
    kept = JsonlStore(Path(given.get("out", "outputs/operators.jsonl")))
    rows = measure(all_cases, cases, names, kept, float(given.get("limit_s", "540")))
    print(*summary(rows), f"{len(cases) - len(rows)} not measured in time", sep="\n")
    if "keep" in given:
        keep(FolderLibrary(given["keep"], seeds=None), rows)
    return 1 if any(not each.timing for row in rows for each in row.ours.values()) else 0


def measure(
    known: Cases,
    cases: Sequence[Case],
    peers: Sequence[str],
    kept: JsonlStore,
    limit_s: float,
    most_at_once: int = MOST_AT_ONCE,
    ready_s: float = READY_S,
) -> list[Row]:
    """A row for each of the `cases` finished in time; each is printed immediately. `known` returns all cases
    for a device."""
    end = time.monotonic() + limit_s
    rows = stored(cases, kept)
    for row in rows:
        print(row.line, flush=True)
    waiting = deque(case for case in cases if kept.get(case.name) is None)
    gpus = visible_gpus() if cases[0].device == "cuda" else [""]
    at_once = max(1, min(most_at_once, len(os.sched_getaffinity(0)) // len(gpus)))
    alone = threading.Lock()

    def started(gpu: str) -> list[Started]:
        """The next batch. `turn` lets one of its processes fill the device's memory."""
        turn = SPAWN.Lock()
        with alone:
            batch = [waiting.popleft() for _ in range(min(at_once, len(waiting)))]
        prepare = partial(kernels_of_case, known)
        return [
            (case, KernelProcess(partial(prepare, case.name, case.device, tuple(peers)), gpu, turn))
            for case in batch
        ]

    def take(gpu: str) -> None:
        batch = started(gpu)
        while batch and time.monotonic() < end:
            following: list[Started] = []
            try:
                ready = made_ready(batch, min(end, time.monotonic() + ready_s))
                following = started(gpu)  # imports modules meanwhile
                for row in measured(ready, peers, end):
                    kept.put(row.case.name, {"ours": in_json(row.ours), "peers": in_json(row.peers)})
                    rows.append(row)
                    print(row.line, flush=True)
            finally:
                for _, process in batch:
                    process.close()
                batch = following
        for _, process in batch:
            process.close()

    with ThreadPoolExecutor(len(gpus)) as threads:
        taken = [threads.submit(take, gpu) for gpu in gpus]
        try:
            for each in taken:
                each.result()
        finally:  # after an interrupt or error, start no further batch
            with alone:
                waiting.clear()
    return rows


def made_ready(batch: Sequence[Started], deadline: float) -> list[Started]:
    """Those that are ready to be measured in time (on the monotonic clock); all get ready at once."""
    for _, process in batch:
        process.begin()
    ready = []
    for case, process in batch:
        try:
            process.found(deadline - time.monotonic())
            ready.append((case, process))
        except (EOFError, TimeoutError) as error:
            print(f"{case.name}: not ready: {error or 'its process died'}", flush=True)
            process.close()
    return ready


def measured(ready: Sequence[Started], peers: Sequence[str], end: float) -> Iterator[Row]:
    """Of those that could be measured before `end`, one after the other."""

    def row(case: Case, process: KernelProcess) -> Row:
        found = process.measure()
        theirs = {name: each for name, each in found.items() if name in peers}
        return Row(case, {id: each for id, each in found.items() if id not in theirs}, theirs)

    for case, process in ready:
        if time.monotonic() > end:
            return
        try:
            found = row(case, process)
            if not found.is_steady:
                found = row(case, process)
            if found.is_steady:
                yield found
            else:
                print(f"{case.name}: times not steady; is something else running here?", flush=True)
        except (EOFError, TimeoutError) as error:
            print(f"{case.name}: {error or 'its process died'}", flush=True)
        process.close()


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


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"operators.py: {error}")
