"""Compares the library's kernels over many shapes with eager PyTorch, torch.compile and other people's
kernels.

    python benchmarks/operators.py [set=operators] [device=auto] [only=softmax,matmul] [part=1/2]
        [peers=compile,liger,quack] [limit_s=540] [at_once=12] [out=operators.jsonl]
        [merge=a.jsonl,b.jsonl] [keep=outputs/library]

The sets of families and shapes:

    operators     ten operators of PyTorch, over ten shapes in three dtypes each (attention: fifteen in two)
    transformer   what today's models run (`suite=transformer`), over twenty shapes each
    training      kernels for training, over twenty shapes each: forward and backward together

For each shape, one process measures the library's kernels, the peers and eager PyTorch in turn, in the calls
that a program makes (`benchmarks/operator_timing.py`; all of them are trusted, because the evaluator would
take ten times as long). Before that, each is compared with the outputs in float64, and in training with all
gradients; one that is not correct has no time. Like `kernel_library.override` and `best`, the benchmark takes
the fastest of our kernels that is significantly faster than eager; where there is none, the original runs and
counts as eager. The peers' projects are used where they are installed (`pip install liger-kernel
quack-kernels`, for example); `benchmarks/peers` calls them, QuACK in training without its autotuner.
torch.compile competes in its default mode.

A shape with unsteady times (`evaluators.records.timing.is_steady`) is measured once more, and then left for a
second call. `at_once` shapes are prepared at the same time, with up to 10 GB of the GPU's memory for each.

`out` keeps the measurements, a line per shape, and a second call continues there; a table of all of them is
written next to it as CSV. `part=1/2` takes every second family. `merge` adds other files' lines; with
`limit_s=0` nothing is measured, and no GPU is needed. `keep` is the root of a library whose shape tables get
the measurements as well; `best` chooses kernels by these tables (`kernel_library/seeds`: the ones that ship).

Prints a line per shape; for each family the share of shapes where the library is ahead of the fastest peer or
even with it (within EVEN of its time, or the interval contains 1.00); where it is behind; and in training
what is saved between the passes. `device=cpu` tries the sets at small sizes. The exit status is 1 when a
kernel of ours was not correct.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.operator_cases import COMPILE, PEERS, Case, operator_cases
from benchmarks.operator_rows import (
    Row,
    behind,
    in_json,
    keep,
    merge,
    saved,
    stored,
    summary,
    write_table,
)
from benchmarks.operator_timing import SPAWN, Cases, KernelProcess, kernels_of_case
from benchmarks.training_cases import training_cases
from benchmarks.transformer_cases import transformer_cases
from evaluators.app.command import choose_device
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.usage_error import UsageError
from evaluators.scheduler.local_host import visible_gpus
from kernel_library.catalogue.library import FolderLibrary

SETS: dict[str, Cases] = {
    "operators": operator_cases,
    "transformer": transformer_cases,
    "training": training_cases,
}
KEYS = ("set", "device", "only", "part", "peers", "limit_s", "at_once", "out", "merge", "keep")
MOST_AT_ONCE = "12"
READY_S = 240.0
"""Time limit for the preparation of a batch, including builds of our kernels."""
Started = tuple[Case, KernelProcess]


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - set(KEYS):
        raise UsageError(f"unknown key {min(unknown)}; known are {', '.join(KEYS)}")
    chosen = given.get("set", "operators")
    if chosen not in SETS:
        raise UsageError(f"set={chosen}: known are {', '.join(SETS)}")
    limit_s = float(given.get("limit_s", "540"))
    device = given.get("device", "auto")
    if limit_s:
        device, _ = choose_device(device, clustered=False)
    cases = chosen_cases(SETS[chosen](device), given.get("only", ""), given.get("part", "1/1"))
    names = given["peers"].split(",") if "peers" in given else [COMPILE, *peer_names(chosen)]
    out = Path(given.get("out", f"outputs/{chosen}.jsonl"))
    kept = JsonlStore(out)
    for other in filter(None, given.get("merge", "").split(",")):
        merge(kept, Path(other), [case.name for case in cases])
    if limit_s:
        most_at_once = int(given.get("at_once", MOST_AT_ONCE))
        rows = measure(SETS[chosen], cases, names, kept, limit_s, most_at_once)
    else:
        rows = stored(cases, kept)
    write_table(out.with_suffix(".csv"), rows)
    print("", *summary(rows), "", *saved(rows), *behind(rows), sep="\n")
    print(f"{len(cases) - len(rows)} not measured in time")
    if "keep" in given:
        keep(FolderLibrary(given["keep"], seeds=None), rows)
    return 1 if any(not each.timing for row in rows for each in row.ours.values()) else 0


def chosen_cases(cases: Sequence[Case], only: str, part: str) -> list[Case]:
    """Those of a part of the families whose name contains one of the words. Raises UsageError."""
    families = part_of(list(dict.fromkeys(case.operator.op for case in cases)), part)
    words = only.split(",")
    found = [
        case for case in cases if case.operator.op in families and any(word in case.name for word in words)
    ]
    if not found:
        raise UsageError(f"only={only}: no shape's name contains it")
    return found


def peer_names(chosen: str) -> list[str]:
    """All other projects with a kernel for a set."""
    return sorted({file.stem for file in (PEERS / chosen).glob("*/*.py")})


def part_of(families: Sequence[str], part: str) -> Sequence[str]:
    """The i-th of n parts, for `i/n`. Raises UsageError."""
    first, _, count = part.partition("/")
    if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise UsageError(f"part={part}: give i/n, such as 1/2")
    return families[int(first) - 1 :: int(count)]


def measure(
    known: Cases,
    cases: Sequence[Case],
    peers: Sequence[str],
    kept: JsonlStore,
    limit_s: float,
    most_at_once: int,
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
                ready = made_ready(batch, min(end, time.monotonic() + READY_S))
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


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"operators.py: {error}")
