"""Compares an `ideatree optimize` run that is killed and resumed with one that is not.

    python benchmarks/killed_optimize.py model=examples/mlp.py device=cpu budget.evaluations=16 [kills=2]

Takes the keys of `ideatree optimize`, and `kills`. Runs the command to its end, then again with SIGKILL to
its process group at equal fractions of the first run's time (a run that ends sooner is killed less often),
followed by `resume=`. Prints a table of both. The exit status is 1 where they differ in something that does
not depend on the clock (problems, total evaluations, verdict on the model), or where the intervals of a
speedup, per problem or end to end, do not overlap.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from search.optimize.extraction.record import EXTRACTION, Extraction
from search.optimize.outcome import KERNELS
from search.optimize.stages import SEARCHES
from search.optimize.verification.record import FILE, Verification

COMMAND = [sys.executable, "-m", "search.optimize"]
OUTPUTS = Path("outputs") / "optimize"
Interval = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class End:
    """How a run ended: evaluations per problem, the speedup of each problem's kernel, whether the outputs are
    the same, and the model's speedups by the way of running it."""

    problems: dict[str, int]
    kernels: dict[str, Interval]
    passes: bool
    ways: dict[str, Interval]


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = [each for each in arguments if not each.startswith("kills=")]
    kills = int(next((each.partition("=")[2] for each in arguments if each.startswith("kills=")), "2"))
    whole, seconds = run(given, None)
    print(f"not killed: {seconds:.0f} s, {whole}", flush=True)
    left, resumed, total = kills, list(given), 0.0
    folder = None
    while True:
        folder, took = run(resumed, seconds / (kills + 1) if left else None, folder)
        total += took
        if (folder / FILE).exists() or not left:
            break
        left -= 1
        print(f"killed after {took:.0f} s, in {stage(folder)}", flush=True)
        resumed = [f"resume={folder}"]
    print(f"killed {kills - left} times: {total:.0f} s, {folder}", flush=True)
    return compared(end_of(whole), end_of(folder))


def run(given: Sequence[str], kill_after_s: float | None, folder: Path | None = None) -> tuple[Path, float]:
    """The run's folder and the seconds that it took."""
    begun, known = time.monotonic(), {*OUTPUTS.glob("*")}
    process = subprocess.Popen([*COMMAND, *given], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(kill_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"exit status {process.returncode}: {' '.join(given)}")
    [made] = [folder] if folder else {*OUTPUTS.glob("*")} - known
    return made, time.monotonic() - begun


def stage(folder: Path) -> str:
    """The stage that a run had reached."""
    if not (folder / EXTRACTION).exists():
        return "the profile"
    return "the verification" if (folder / KERNELS).exists() else "the search"


def end_of(folder: Path) -> End:
    """The end of a completed run."""
    found = Verification.read(folder / FILE)
    kernels = json.loads((folder / KERNELS).read_text(encoding="utf-8"))
    evaluations = {}
    for each in Extraction.read(folder / EXTRACTION).problems:
        summary = folder / SEARCHES / each.name / "summary.json"
        made = json.loads(summary.read_text(encoding="utf-8"))["evaluations"] if summary.exists() else 0
        evaluations[each.name] = int(made)
    return End(
        problems=evaluations,
        kernels={name: (own["speedup"], own["low"], own["high"]) for name, own in kernels.items()},
        passes=found.passes,
        ways={way: found.speedup(way) for way in found.ways},
    )


def compared(whole: End, killed: End) -> int:
    """Prints both runs; returns 1 if they differ."""
    differ = []
    print(f"{'':<30}{'not killed':>24}{'killed':>24}")
    names = dict.fromkeys([*whole.problems, *killed.problems])
    for name in names:
        both = [str(each.problems.get(name, "no problem")) for each in (whole, killed)]
        print(f"{name + ', evaluations':<30}{both[0]:>24}{both[1]:>24}")
    if whole.problems.keys() != killed.problems.keys():
        differ.append("problems")
    if sum(whole.problems.values()) != sum(killed.problems.values()):
        differ.append("evaluations in all")
    for title, ours, theirs in (
        ("kernel of ", whole.kernels, killed.kernels),
        ("", whole.ways, killed.ways),
    ):
        for name in dict.fromkeys([*ours, *theirs]):
            both = [_words(each.get(name)) for each in (ours, theirs)]
            print(f"{title + name:<30}{both[0]:>24}{both[1]:>24}")
            one, other = ours.get(name), theirs.get(name)
            if one and other and (one[2] < other[1] or other[2] < one[1]):
                differ.append(title + name)
    print(f"{'same outputs':<30}{whole.passes!s:>24}{killed.passes!s:>24}")
    if whole.passes != killed.passes:
        differ.append("the verdict")
    print(f"differ: {', '.join(differ)}" if differ else "no differences")
    return 1 if differ else 0


def _words(interval: Interval | None) -> str:
    if interval is None:
        return "none"
    speedup, low, high = interval
    return f"{speedup:.2f}x [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
