"""What ten kernels with planted faults looked like on an H200, kept in `measured.tar.xz`.

For each kernel: `.ncu-rep` is a report of ncu 2025.3, `.kernels.json` the kernels of three calls from
torch.profiler (for `launch_bound` the first 40 of one call), `.sass.txt` and `.res.txt` the output of
`cuobjdump`.

Two kernels did not have their fault when they were measured, and serve as further examples: `no_spills` (the
bound of 24 registers was overruled) and `starved_tensor_cores` (Triton made the scalar product a `dot`). Of
`spills` and `idle_tensor_cores`, which were planted anew, there is the code for compute capability 9.0 only.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from evaluators.profiling import binaries, counters, launches
from evaluators.profiling.facts import ProfileFacts, Task
from evaluators.records.diagnosis import Level

ARCHIVE = Path(__file__).with_name("measured.tar.xz")
PLANTED = Path(__file__).with_name("planted")
MATMUL = 2 * 2048**3
TASKS = {
    "no_tf32": Task(lower=("float16", "bfloat16", "tfloat32"), operations=MATMUL),
    "idle_tensor_cores": Task(dtype="float16", operations=MATMUL),
    "starved_tensor_cores": Task(dtype="float16", operations=MATMUL),
}
CALLS = {"launch_bound": 1}
SOURCES = {
    Level.STATIC: ".sass.txt",
    Level.TRACE: ".kernels.json",
    Level.COUNTERS: ".ncu-rep",
}


def unpack(folder: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def facts(folder: Path, name: str, *levels: Level) -> ProfileFacts:
    """The facts of a kernel at these levels."""
    found = {level: _read(folder, name, level) for level in levels}
    return ProfileFacts(
        task=TASKS.get(name, Task()),
        capability="9.0",
        multiprocessors=132,
        static=found.get(Level.STATIC),
        trace=found.get(Level.TRACE),
        counters=found.get(Level.COUNTERS),
    )


def _read(folder: Path, name: str, level: Level):
    path = folder / f"{name}{SOURCES[level]}"
    match level:
        case Level.STATIC:
            return binaries.static_facts((folder / f"{name}.res.txt").read_text(), path.read_text())
        case Level.TRACE:
            return launches.of_profiler_events(json.loads(path.read_text()), CALLS.get(name, 3))
        case Level.COUNTERS:
            return counters.read_report(path)
