"""Compares the winners of the recorded searches by a language model with the library's kernels and other
people's, in one session.

    python benchmarks/recorded_winners.py [only=softmax,attention] [peers=liger,quack] [out=winners.json]

For each recording in `search/recordings/language_model`, one process measures the search's best kernel, the
library's other kernels for the problem, eager PyTorch, torch.compile, and the kernels of other projects that
`benchmarks/peers` calls, in turn (`benchmarks/operator_timing.py`; all of them are trusted). Liger,
QuACK and GemLite are used if they are installed (`pip install liger-kernel quack-kernels gemlite`). All
processes get ready at once, and then measure one after the other. Needs a GPU.

Prints, for each search, the fastest rival and how many times as fast as that the winner is, with the 95 %
interval, then all times in ms and why a rival has none. `out` gets the evaluations as JSON. The exit status
is 1 when a winner was not correct.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.operator_cases import COMPILE, COMPILED, peers_of
from benchmarks.operator_timing import EAGER, SPAWN, Found, KernelProcess, Prepared
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import is_steady, paired_speedup
from evaluators.scheduler.local_host import visible_gpus
from kernel_library.catalogue.best import ROOT
from kernel_library.catalogue.library import FolderLibrary

RECORDINGS = Path(__file__).parents[1] / "search" / "recordings" / "language_model"
OPERATORS = {"softmax": "softmax", "matmul_float16": "matmul"}
"""Searches whose peers are those of an operator."""
WINNER = "winner"
READY_S = 150.0


def kernels_for(search: str, only: Sequence[str], capability: str = "") -> Prepared:
    """A search's problem, which allows libraries because peers call them, and all kernels for it by name."""
    import ideatree

    run = ideatree.open_run(RECORDINGS / f"{search}.tar.xz")
    assert run.best is not None
    problem, winner = run.problem, run.best.kernel
    known = [
        entry
        for entry in FolderLibrary(ROOT).entries()
        if not is_winner(entry.kernel, winner) and solves(entry.measurements, problem)
    ]
    of_operator = peers_of("operators", OPERATORS[search]) if search in OPERATORS else {}
    kernels = {
        WINNER: winner,
        COMPILE: Kernel(source=problem.source + COMPILED, language="cpp"),
        **{entry.id: entry.kernel for entry in known},
        **peers_of("transformer", search),
        **of_operator,
    }
    chosen = {name: each for name, each in kernels.items() if not only or name in (WINNER, *only)}
    return replace(problem, libraries="any"), chosen


def is_winner(kernel: Kernel, winner: Kernel) -> bool:
    """Whether a kernel is the search's winner, to which the library may have added a function."""
    return kernel.source.startswith(winner.source.rstrip())


def solves(measurements: Sequence, problem: Problem) -> bool:
    """Whether one of an entry's measurements is of this problem on a GPU."""
    return any(
        (each.problem.source, each.problem.dtype, each.problem.overrides, each.problem.device)
        == (problem.source, problem.dtype, problem.overrides, "cuda")
        for each in measurements
    )


def measured(searches: Sequence[str], only: Sequence[str]) -> Iterator[tuple[str, Found | str]]:
    """The evaluations of each search's kernels, or why there are none."""
    turn, gpu = SPAWN.Lock(), visible_gpus()[0]
    started = {search: KernelProcess(partial(kernels_for, search, only), gpu, turn) for search in searches}
    lost: dict[str, str] = {}
    for process in started.values():
        process.begin()
    for search, process in started.items():
        try:
            process.found(READY_S)
        except (EOFError, TimeoutError) as error:
            lost[search] = str(error) or "its process died"
    for search, process in started.items():
        yield search, lost.get(search) or steady(process)
        process.close()


def steady(process: KernelProcess) -> Found | str:
    """What it measures, once more where the times are not steady, or why there is nothing."""
    try:
        found = process.measure()
        if not all(is_steady(each.timing) for each in found.values() if each.timing):
            found = process.measure()
        return found
    except (EOFError, TimeoutError) as error:
        return str(error) or "its process died"


def line(search: str, found: Found | str) -> str:
    """Of the table."""
    if isinstance(found, str):
        return f"{search}: {found}"
    timings = {name: each.timing for name, each in found.items() if each.timing}
    lost = [
        f"{name}: {each.status.value}: {each.log[-160:]}" for name, each in found.items() if not each.timing
    ]
    if WINNER not in timings:
        return "\n    ".join([f"{search}: the winner has no time", *lost])
    own = timings[WINNER]
    rivals = {name: each.kernel_samples_ms for name, each in timings.items() if name != WINNER}
    rivals[EAGER] = own.eager_samples_ms
    ahead = {name: paired_speedup(own.kernel_samples_ms, theirs) for name, theirs in rivals.items()}
    fastest = min(ahead, key=lambda name: ahead[name][0])
    speedup, low, high = ahead[fastest]
    times = [
        f"{name} {own.kernel_ms * each[0]:.4g} ({each[0]:.3f}x [{each[1]:.3f}, {each[2]:.3f}])"
        for name, each in ahead.items()
    ]
    words = [
        f"{search}: {speedup:.3f}x [{low:.3f}, {high:.3f}] of {fastest}; {own.kernel_ms:.4g} ms",
        "  ".join(times),
        *lost,
    ]
    return "\n    ".join(words)


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {"only", "peers", "out"}:
        raise UsageError(f"unknown key {min(unknown)}; known are only, peers, out")
    known = [file.name.removesuffix(".tar.xz") for file in sorted(RECORDINGS.glob("*.tar.xz"))]
    searches = given["only"].split(",") if "only" in given else known
    if strange := set(searches) - set(known):
        raise UsageError(f"only={min(strange)}: there is no such recording")
    if not visible_gpus():
        raise UsageError("needs a GPU")
    only = given["peers"].split(",") if "peers" in given else []
    kept: dict[str, object] = {}
    wrong = False
    for search, found in measured(searches, only):
        print(line(search, found), flush=True)
        wrong |= isinstance(found, str) or found[WINNER].timing is None
        if not isinstance(found, str):
            kept[search] = {name: each.to_json() for name, each in found.items()}
        if "out" in given:
            Path(given["out"]).write_text(json.dumps(kept, indent=1))
    return int(wrong)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"recorded_winners.py: {error}")
