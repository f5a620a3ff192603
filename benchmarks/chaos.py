"""Stress test: honest and broken kernels in one queue, while our own processes are killed at random.

    python benchmarks/chaos.py [--candidates 200] [--kills 12] [--device auto] [--pool ray] [--limit 1800]

Checks that each candidate gets exactly one verdict, and the right one; that a death is noticed within
`--known-within` seconds; and that no process, GPU memory or scratch folder is left behind. Prints a table and
exits with status 1 when a check fails. The candidates really do what their name says, confined only by the
evaluator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import re
import secrets
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.chaos_kinds import DEAD, HONEST, KINDS, REFERENCE, Kind
from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import Plan
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from evaluators.scheduler.ray_host import RayHost

MARK = "CUDAHOSTCXX"
"""An environment variable that all processes of the evaluator inherit; it finds those left behind."""
OURS = {
    "node forkserver": "node's fork server",
    "fork server": "fork server",
    "judge process": "judge process",
    "ray::DeviceActor"[:15]: "worker",
}
"""Our processes by their command names; candidates are runners."""
GPU_SLACK_MIB = 64
EVERY = 10
"""Verdicts between two lines of progress."""


@dataclass(kw_only=True)
class Result:
    """A candidate with all its verdicts and their times (seconds since 1970)."""

    kind: Kind
    kernel: Kernel
    verdicts: list[tuple[float, Evaluation]] = field(default_factory=list)


class Killer(threading.Thread):
    """Sends SIGKILL to our own processes, one at a time, until stopped."""

    def __init__(self, mark: str, kills: int, every_s: float, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.killed: Counter[str] = Counter()
        self._mark, self._kills, self._every_s, self._rng = mark, kills, every_s, rng
        self._enough = threading.Event()

    def run(self) -> None:
        """Kills a process after each interval."""
        while self.killed.total() < self._kills:
            if self._enough.wait(self._rng.uniform(0.5, 1.5) * self._every_s):
                return
            ours = sorted(own_processes(self._mark).items())
            if ours:
                pid, name = self._rng.choice(ours)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed[name] += 1

    def stop(self) -> None:
        """Stops killing."""
        self._enough.set()
        if self.is_alive():
            self.join()


def marked(mark: str) -> dict[int, str]:
    """The command lines of all other living processes with the mark, by pid."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry)] = line.decode(errors="replace")
    return found


def own_processes(mark: str) -> dict[int, str]:
    """Our living processes by pid, with their role."""
    found = {}
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if name in OURS:
                found[pid] = OURS[name]
    return found


def candidates(count: int, honest: int | None, on_gpu: bool, rng: random.Random) -> list[Result]:
    """Shuffled candidates: `honest` of them (None: two in five) are honest, the rest of each kind in turn."""
    kinds = [kind for kind in KINDS if on_gpu or not kind.gpu]
    broken = count * 3 // 5 if honest is None else count - honest
    chosen = [kinds[n % len(kinds)] for n in range(broken)] + [HONEST] * (count - broken)
    rng.shuffle(chosen)
    return [Result(kind=kind, kernel=kind.kernel(number)) for number, kind in enumerate(chosen)]


async def judge(
    pool: Pool, problem: Problem, results: Sequence[Result], killer: Killer, limit_s: float
) -> None:
    """Judges all candidates concurrently, as in a search, while the killer runs. Candidates without a verdict
    after `limit_s` stay without one."""
    began = time.monotonic()

    async def one(result: Result) -> None:
        evaluation = await pool.evaluate(problem, result.kernel)
        result.verdicts.append((time.time(), evaluation))
        count = sum(len(each.verdicts) for each in results)
        if count % EVERY == 0:
            print(f"{count} verdicts after {time.monotonic() - began:.0f} s", file=sys.stderr)

    await pool.describe(problem)
    killer.start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*(one(result) for result in results))


def delays_s(results: Sequence[Result]) -> list[float]:
    """The delay from each announced death to its verdict, sorted."""
    found = []
    for result in results:
        for at_s, evaluation in result.verdicts:
            if evaluation.status is Status.CRASHED and (
                said := re.search(r"dies at ([\d.]+)", evaluation.log)
            ):
                found.append(at_s - float(said[1]))
    return sorted(found)


def wrongs(results: Sequence[Result], known_within_s: float) -> list[str]:
    """What is wrong with the verdicts, one line each."""
    found = []
    for result in results:
        if len(result.verdicts) != 1:
            found.append(f"{result.kind.name} {result.kernel.id}: {len(result.verdicts)} verdicts")
        for _, evaluation in result.verdicts:
            if evaluation.status not in result.kind.right:
                log = evaluation.log.strip()[-600:]
                found.append(f"{result.kind.name} {result.kernel.id}: {evaluation.status}\n{log}")
    delays = delays_s(results)
    if delays and delays[-1] > known_within_s:
        found.append(f"a death was noticed only after {delays[-1]:.2f} s")
    if not delays and any(result.kind.right == DEAD for result in results):
        found.append("no death was announced")
    return found


def table(results: Sequence[Result]) -> list[str]:
    """Verdicts and times of each kind."""
    by_kind: defaultdict[str, list[Evaluation]] = defaultdict(list)
    for result in results:
        by_kind[result.kind.name] += [evaluation for _, evaluation in result.verdicts]
    lines = [f"{'kind':<26}{'n':>4}  {'build s':>8}{'device s':>10}{'longest':>9}  verdicts"]
    for name, found in sorted(by_kind.items()):
        if found:
            statuses = Counter(each.status.value for each in found)
            device_s = [each.device_s for each in found]
            lines.append(
                f"{name:<26}{len(found):>4}  {statistics.median(each.build_s for each in found):>8.2f}"
                f"{statistics.median(device_s):>10.2f}{max(device_s):>9.2f}  "
                + ", ".join(f"{status} {n}" for status, n in statuses.items())
            )
    return lines


def gpu_memory_mib() -> list[int]:
    """Memory in use on each visible GPU, by any process."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if ours := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query.append(f"--id={ours}")
    return [int(line) for line in subprocess.check_output(query, text=True).split()]


def left_over(mark: str, root: Path, gpu_before_mib: Sequence[int], within_s: float = 20.0) -> list[str]:
    """What is left behind, one line each; waits a while, because the system needs time to clean up."""
    deadline = time.monotonic() + within_s
    while True:
        found = [f"process {pid} is left behind: {command}" for pid, command in marked(mark).items()]
        if root.exists():
            found.append(f"{root} is left behind, with {[path.name for path in root.iterdir()]}")
        now_mib = gpu_memory_mib() if gpu_before_mib else []
        for device, (before, now) in enumerate(zip(gpu_before_mib, now_mib, strict=True)):
            if now > before + GPU_SLACK_MIB:
                found.append(f"GPU {device} has {now} MiB in use, {before} before")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--honest", type=int, help="number of honest candidates (default: two in five)")
    parser.add_argument("--kills", type=int, default=12, help="number of our processes to kill")
    parser.add_argument(
        "--kill-every", type=float, default=15.0, help="approximate seconds between two kills"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--pool", choices=("ray", "local"), default="ray")
    parser.add_argument("--timeout", type=float, default=8.0, help="time limit of a measurement, in seconds")
    parser.add_argument(
        "--limit", type=float, default=1800.0, help="time limit for all candidates, in seconds"
    )
    parser.add_argument(
        "--known-within", type=float, default=2.0, help="longest delay from a death to its verdict, in s"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    on_gpu = asked.device == "cuda" or (asked.device == "auto" and Path("/dev/nvidiactl").exists())
    os.environ[MARK] = mark = f"ideatree-chaos-{secrets.token_hex(8)}"
    gpu_before_mib = gpu_memory_mib() if on_gpu else []
    problem = Problem(
        name="file/tanhs",
        source=REFERENCE,
        overrides={"width": 1024} if on_gpu else {},
        device="cuda" if on_gpu else "cpu",
    )
    settings = Settings(
        build_timeout_s=60.0 if on_gpu else asked.timeout,
        timeout_s=asked.timeout,
        memory_gb=8.0 if on_gpu else 1.5,
        scratch_gb=0.5,
        max_calls=64 if on_gpu else 8,
        threads=None if on_gpu else 1,
        compile_mode="",
        plan=Plan(block_ms=4.0, precision=0.2, max_s=0.2),
    )
    rng = random.Random(asked.seed)
    results = candidates(asked.candidates, asked.honest, on_gpu, rng)
    host: Any = (RayHost if asked.pool == "ray" else LocalHost)(settings=settings, on_gpu=on_gpu)
    pool = Pool(host)
    killer = Killer(mark, asked.kills, asked.kill_every, rng)
    began = time.monotonic()
    try:
        asyncio.run(judge(pool, problem, results, killer, asked.limit))
    finally:
        killer.stop()
        pool.close()
    seconds = time.monotonic() - began
    found = wrongs(results, asked.known_within) + left_over(mark, host._root, gpu_before_mib)
    statuses = Counter(evaluation.status.value for result in results for _, evaluation in result.verdicts)
    delays = delays_s(results)
    print(*table(results), "", sep="\n")
    print("statuses:  ", ", ".join(f"{status} {n}" for status, n in sorted(statuses.items())))
    if delays:
        print(f"deaths:     noticed after {statistics.median(delays):.2f} s, at most {delays[-1]:.2f} s")
    print("killed:    ", ", ".join(f"{name} {n}" for name, n in killer.killed.items()) or "none")
    print(f"set aside:  {pool.devices_set_aside or 'none'}")
    print(f"time:       {seconds:.0f} s, {60 * statuses.total() / seconds:.1f} verdicts per minute")
    print(*(f"WRONG: {each}" for each in found), sep="\n")
    print("all checks passed" if not found else f"{len(found)} checks failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
