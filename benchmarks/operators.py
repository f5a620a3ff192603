"""The library's operators over 30 shapes each, beside eager PyTorch, torch.compile, Liger and QuACK.

    python benchmarks/operators.py [device=auto] [only=softmax,matmul] [peers=compile,liger,quack]
        [limit_s=540] [out=operators.jsonl]

An operator has ten shapes in three types (attention fifteen in two, which is what its kernels are for). For
each, the kernel that `kernel_library.best` would take is measured in one session with the peers and with
eager PyTorch, all in turn; where the library has none, or one that is not correct, the original runs, and
counts as eager. Liger and QuACK are used where they are installed (`pip install liger-kernel quack-kernels`);
`benchmarks/peers/operators` calls them. torch.compile is in its default mode, as a candidate like them.

`out` keeps what was measured, a line a shape, and a second call goes on there. Prints a line a shape, and for
each operator the share of shapes where the library is ahead of the fastest of the others or even with it
(within EVEN of its time, or the interval holds 1.00). Exit status 1 when a kernel of ours was not correct.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.operator_cases import OPERATORS, Case
from evaluators.cli import build, choose_device, compose_config
from evaluators.config_errors import UsageError
from evaluators.evaluate import EvaluateConfig
from evaluators.evaluation import Evaluation, Status
from evaluators.kept_lines import KeptLines
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from evaluators.system import process_tree
from evaluators.timing import paired_speedup
from kernel_library.entry import Entry
from kernel_library.library import FolderLibrary

PEERS = ("compile", "liger", "quack")
OURS, EAGER = "ours", "eager"
EVEN = 0.02
"""Of the time of the fastest of the others."""
SETTINGS = ("problem=level1/softmax", "kernel=none", "evaluator.timeout_s=90", "evaluator.open_timeout_s=120")


@dataclass(frozen=True)
class Row:
    """What was measured of a case: the library's entry ("" where it has none), and by name eager's time and
    each kernel's evaluation."""

    case: str
    entry: str
    found: dict[str, Evaluation]

    @property
    def eager_ms(self) -> float | None:
        """Of the session, None where nothing was timed."""
        return next((each.timing.eager_ms for each in self.found.values() if each.timing), None)

    @property
    def ours_ms(self) -> float | None:
        """Of our kernel, or eager's in its place."""
        timing = self.found[OURS].timing if OURS in self.found else None
        return timing.kernel_ms if timing else self.eager_ms

    @property
    def others_ms(self) -> dict[str, float]:
        """Of each peer with a time, and eager's."""
        peers = {name: each.timing for name, each in self.found.items() if name != OURS}
        times = {name: timing.kernel_ms for name, timing in peers.items() if timing}
        return times | ({EAGER: self.eager_ms} if self.eager_ms else {})

    @property
    def ahead(self) -> tuple[str, float, float, float] | None:
        """The fastest of the others, and how many times as fast as that we are, with the interval; None
        where nothing was timed."""
        others = self.others_ms
        if not others:
            return None
        name = min(others, key=others.__getitem__)
        timing = self.found[OURS].timing if OURS in self.found else None
        if timing is None:  # the original runs
            ratio = others[name] / (self.eager_ms or 1.0)
            return name, ratio, ratio, ratio
        theirs = self.found[name].timing if name != EAGER else None
        samples = theirs.kernel_samples_ms if theirs else timing.eager_samples_ms
        return name, *paired_speedup(timing.kernel_samples_ms, samples)

    @property
    def is_even(self) -> bool:
        """Whether we are ahead of the fastest of the others, or even with it."""
        ahead = self.ahead
        return ahead is not None and (ahead[3] >= 1.0 or ahead[1] >= 1.0 - EVEN)

    @property
    def line(self) -> str:
        """Of the table."""
        ahead = self.ahead
        if ahead is None:
            said = ", ".join(f"{name}: {each.status.value} {each.cause}" for name, each in self.found.items())
            return f"{self.case}: no times: {said}"
        name, ratio, low, high = ahead
        others = "  ".join(f"{other} {ms:.4f}" for other, ms in self.others_ms.items())
        failed = [f"{other} {each.status.value}" for other, each in self.found.items() if not each.timing]
        words = [
            f"{ratio:6.3f}x [{low:.3f}, {high:.3f}] of {name:<8}",
            f"{'' if self.is_even else 'BEHIND '}{self.case}: {self.entry or 'the original'}",
            f"{self.ours_ms:.4f} ms; {others}",
            *failed,
        ]
        return "  ".join(words)


def main(arguments: Sequence[str]) -> int:
    """Measures; returns the exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {"device", "only", "peers", "limit_s", "out"}:
        raise UsageError(f"unknown key {min(unknown)}; there are device, only, peers, limit_s, out")
    device, _ = choose_device(given.get("device", "auto"), clustered=False)
    names = [name for name in given.get("peers", ",".join(PEERS)).split(",") if name]
    words = given.get("only", "").split(",")
    cases = [
        case for each in OPERATORS for case in each.cases(device) if any(word in case.name for word in words)
    ]
    if not cases:
        raise UsageError(f"only={given.get('only', '')} is in the name of no case")
    kept = KeptLines(Path(given.get("out", "outputs/operators.jsonl")))
    rows = asyncio.run(measure(cases, names, kept, float(given.get("limit_s", "540"))))
    print(*summary(rows), f"{len(cases) - len(rows)} not measured in time", sep="\n")
    wrong = [row.case for row in rows if OURS in row.found and not row.found[OURS].timing]
    return 1 if wrong else 0


async def measure(cases: Sequence[Case], peers: Sequence[str], kept: KeptLines, limit_s: float) -> list[Row]:
    """A row for each case that was done in time, each printed as it comes."""
    host = LocalHost(
        settings=build(compose_config(EvaluateConfig, SETTINGS).evaluator), on_gpu=cases[0].device == "cuda"
    )
    pool, rows = Pool(host), []
    entries = FolderLibrary("outputs/library").entries()
    turns = asyncio.Semaphore(2 * host.devices)
    architecture = await host.architecture() if cases[0].device == "cuda" else "cpu"

    async def one(case: Case) -> None:
        known = kept.of(case.name)
        async with turns:
            row = (
                row_of(case.name, known)
                if known
                else await measured(case, pool, peers, entries, architecture)
            )
        if not known and all(each.status is not Status.INFRASTRUCTURE_ERROR for each in row.found.values()):
            found = {name: each.to_json() for name, each in row.found.items()}
            kept.keep(case.name, {"entry": row.entry, "found": found})
        rows.append(row)
        print(row.line, flush=True)

    try:
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*map(one, cases))
    except TimeoutError:
        process_tree.kill_descendants()
    finally:
        pool.close(now=True)
    return rows


async def measured(
    case: Case, pool: Pool, peers: Sequence[str], entries: Sequence[Entry], architecture: str
) -> Row:
    """All kernels for it in one session."""
    problem, entry = case.to_problem(), case.ours(entries, architecture)
    kernels = {OURS: entry.kernel} if entry else {}
    kernels |= {name: peer for name in peers if (peer := case.peer(name, problem))}
    found = await pool.compare(problem, list(kernels.values()), thorough=False)
    return Row(case.name, entry.id if entry else "", dict(zip(kernels, found, strict=True)))


def row_of(case: str, known: dict[str, Any]) -> Row:
    """What was kept of a case."""
    found = {name: Evaluation.from_json(each) for name, each in known["found"].items()}
    return Row(case, known["entry"], found)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each operator, and the shapes where we are behind."""
    yield f"{'operator':<15}{'shapes':>7}{'ahead or even':>15}{'over eager':>12}{'over the best':>15}"
    for op in dict.fromkeys(row.case.partition(" ")[0] for row in rows):
        own = [row for row in rows if row.case.partition(" ")[0] == op and row.ahead]
        if own:
            even = sum(row.is_even for row in own)
            eager = geometric_mean((row.eager_ms or 1.0) / (row.ours_ms or 1.0) for row in own)
            best = geometric_mean(row.ahead[1] for row in own if row.ahead)
            yield f"{op:<15}{len(own):>7}{even / len(own):>15.0%}{eager:>11.2f}x{best:>14.2f}x"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"operators.py: {error}")
