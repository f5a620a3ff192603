"""Measures how verdicts per minute scale with the GPUs of one machine: the same kernels on one, two and four.

    python benchmarks/scaling.py [gpus=1,2,4] [count=400] [cores=16] [seconds=90]

The kernels are one Triton matmul with different comments, so that each is built. Each number of GPUs runs in
a new process that sees only those GPUs and `cores` cores per GPU, until all kernels are judged or `seconds`
have passed since the first GPU was ready. The steady rate leaves out the first quarter of the verdicts, in
which processes start and each GPU opens the reference. The exit status is 0 when the steady rate is at least
1.9 times that of one GPU on two, and 3.6 times on four.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel
from evaluators.reference.loading import load_problem
from evaluators.scheduler.pool import Pool

PROBLEM = "level1/matmul"
KERNEL = Path(__file__).parent / "kernels" / "level1_1" / "triton_blocks.py"
START_S = 120.0
"""Time limit for the start of the processes."""
LEAST = 8
"""Least number of verdicts for a rate."""
EVERY = 10
"""Verdicts between two lines of progress."""
MIN_SPEEDUP = {2: 1.9, 4: 3.6}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line options. `part`: run on this number of GPUs in this process and print JSON."""

    gpus: str = "1,2,4"
    count: int = 400
    cores: int = 16
    seconds: float = 90.0
    device: str = "cuda"
    kernel: str = str(KERNEL)
    part: int = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result for one number of GPUs; times in seconds since its process started working."""

    gpus: int
    ready_s: float
    done_at_s: tuple[float, ...]
    held_s: tuple[float, ...]
    build_s: tuple[float, ...]
    statuses: dict[str, int]

    @property
    def steady_rate(self) -> float:
        """Verdicts per minute after the first quarter of them."""
        first = len(self.done_at_s) // 4
        return (len(self.done_at_s) - 1 - first) / (self.done_at_s[-1] - self.done_at_s[first]) * 60

    @property
    def cold_rate(self) -> float:
        """Verdicts per minute, everything counted."""
        return len(self.done_at_s) / self.done_at_s[-1] * 60

    @property
    def busy(self) -> float:
        """The share of the GPUs' time after start-up that candidates used."""
        return sum(self.held_s) / (self.gpus * (self.done_at_s[-1] - self.ready_s))


def make_kernels(source: str, language: str, count: int) -> list[Kernel]:
    """`count` different kernels with the same work, none of which is in a build cache."""
    run = secrets.token_hex(4)
    return [Kernel(source=f"{source}\n# {run} {number}\n", language=language) for number in range(count)]


async def run_here(options: Options) -> Run:
    """The load on the GPUs that this process sees."""
    from evaluators.scheduler.ray_host import RayHost

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores * options.part])
    problem = load_problem(PROBLEM, device=options.device)
    source = Path(options.kernel)
    kernels = make_kernels(source.read_text(), source.stem.partition("_")[0], options.count)
    began = time.monotonic()
    host = RayHost(settings=Settings(), on_gpu=options.device == "cuda")
    pool = Pool(host)
    found: list[tuple[float, Evaluation]] = []

    async def one(kernel: Kernel) -> None:
        evaluation = await pool.evaluate(problem, kernel)
        found.append((time.monotonic() - began, evaluation))
        if len(found) % EVERY == 0:
            print(f"{options.part} GPUs: {len(found)} verdicts after {found[-1][0]:.0f} s", file=sys.stderr)

    try:
        await pool.describe(problem)
        ready_s = time.monotonic() - began
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.seconds):
                await asyncio.gather(*(one(kernel) for kernel in kernels))
        if len(found) < LEAST:
            raise SystemExit(f"only {len(found)} verdicts")
    finally:
        pool.close()
    return Run(
        gpus=options.part,
        ready_s=ready_s,
        done_at_s=tuple(at_s for at_s, _ in found),
        held_s=tuple(evaluation.device_s for _, evaluation in found),
        build_s=tuple(evaluation.build_s for _, evaluation in found),
        statuses=dict(Counter(evaluation.status.value for _, evaluation in found)),
    )


def run_apart(gpus: int, options: Options) -> Run:
    """The load on this number of GPUs, in a new process. Raises RuntimeError if it fails."""
    given = [f"{name}={value}" for name, value in asdict(options).items() if name not in ("gpus", "part")]
    visible = ",".join(str(number) for number in range(gpus))
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": visible} if options.device == "cuda" else {})
    try:
        done = subprocess.run(
            [sys.executable, __file__, f"part={gpus}", *given],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=START_S + options.seconds,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise RuntimeError(f"{gpus} GPUs: {error}") from error
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def parse(arguments: Sequence[str]) -> Options:
    """`key=value` for each field of Options. Raises ValueError for another key or value."""
    kinds = {"count": int, "cores": int, "part": int, "seconds": float}
    given: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in Options.__dataclass_fields__:
            raise ValueError(
                f"{argument}: expected key=value with a key of {[*Options.__dataclass_fields__]}"
            )
        given[key] = kinds.get(key, str)(value)
    return Options(**given)


def main() -> int:
    """Runs each number of GPUs in turn; returns 0 if every goal is met."""
    try:
        options = parse(sys.argv[1:])
        numbers = [int(number) for number in options.gpus.split(",")]
    except ValueError as error:
        print(f"scaling.py: {error}\n{__doc__}", file=sys.stderr)
        return 2
    if options.part:
        print(json.dumps(asdict(asyncio.run(run_here(options)))))
        return 0
    what = f"{options.seconds:g} s or {options.count} kernels, {options.cores} cores per GPU"
    print(f"{what}; rates in verdicts per minute", flush=True)
    head = ("ready s", "wall s", "cold", "steady", "held s", "build s", "busy")
    print(f"{'GPUs':>4}" + "".join(f"{word:>9}" for word in head) + "  verdicts")
    met = True
    one: Run | None = None
    for gpus in numbers:
        try:
            run = run_apart(gpus, options)
        except RuntimeError as error:
            print(error)
            met = False
            continue
        one = one or run
        figures = (run.ready_s, run.done_at_s[-1], run.cold_rate, run.steady_rate)
        medians = f"{median(run.held_s):9.2f}{median(run.build_s):9.2f}"
        print(
            f"{gpus:4d}" + "".join(f"{x:9.1f}" for x in figures) + f"{medians}{run.busy:9.0%}  {run.statuses}"
        )
        speedup = run.steady_rate / one.steady_rate
        if goal := MIN_SPEEDUP.get(gpus):
            met &= speedup >= goal
            word = "ok    " if speedup >= goal else "MISSED"
            print(f"{word} {speedup:.2f} x one GPU (goal: at least {goal:g})", flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
