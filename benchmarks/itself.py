"""The reference against itself: its speedup is 1, and the interval has to say so.

    python benchmarks/itself.py [problem=level1/conv2d] [tries=100] [device=auto] [thorough=false] [busy=0]

With `thorough=true` it is measured as a search's winner is, without as its variants are; beside `busy`
processes that keep a core busy each. Prints how many of the tries hold 1.00 in their interval (to reach: 94
of 100), the spread of the speedups, the interval's half-width and how long the device was held; every tenth
try, so far. Exit status 0 when at least 94 % do.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.app.command import build, choose_device, compose_config
from evaluators.base.usage_error import UsageError
from evaluators.device.worker import Worker
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.records.evaluation import Timing
from evaluators.records.problem import Problem, reference_kernel

TO_REACH = 0.94


def main(arguments: list[str]) -> int:
    """Runs the tries one after the other on one device."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    device, _ = choose_device(given.get("device", "auto"), clustered=False)
    name = given.get("problem", "level1/conv2d")
    config = compose_config(EvaluateConfig, [f"problem={name}", "kernel=none"])
    problem: Problem = build(config.problem, device=device, libraries="any")
    kernel = reference_kernel(problem)
    tries = int(given.get("tries", "100"))
    found: list[tuple[Timing, float]] = []
    thorough = given.get("thorough", "false") == "true"
    with tempfile.TemporaryDirectory() as root, busy(int(given.get("busy", "0"))):
        worker = Worker(root=Path(root), settings=build(config.evaluator))
        for number in range(tries):
            evaluation = worker.measure(problem, kernel, b"", thorough=thorough)
            if evaluation.timing is None:
                print(f"try {number}: {evaluation.status} {evaluation.rule} {evaluation.cause}")
            else:
                found.append((evaluation.timing, evaluation.device_s))
            if (number + 1) % 10 == 0 or number + 1 == tries:
                print(f"{name} on {device}: {summary(found, number + 1)}", flush=True)
        worker.close()
    return 0 if holding(found) >= TO_REACH * tries else 1


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that take what they get of the cores, each in a session of its own, since Linux
    shares cores among sessions."""
    work = "import os; above = os.getppid()\nwhile os.getppid() == above: pass"
    command = [sys.executable, "-c", work]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def holding(found: list[tuple[Timing, float]]) -> int:
    """How many of the intervals hold 1.00."""
    return sum(timing.speedup_low <= 1 <= timing.speedup_high for timing, _ in found)


def summary(found: list[tuple[Timing, float]], tries: int) -> str:
    """What `tries` have shown, of which those `found` got a time."""
    if not found:
        return f"0 of {tries} intervals hold 1.00"
    speedups = sorted(timing.speedup for timing, _ in found)
    half = statistics.median((t.speedup_high - t.speedup_low) / 2 / t.speedup for t, _ in found)
    return (
        f"{holding(found)} of {tries} intervals hold 1.00; speedup {statistics.median(speedups):.4f} in the "
        f"median, {speedups[0]:.3f} to {speedups[-1]:.3f}; half-width {half:.2%} in the median; device held "
        f"{statistics.median(s for _, s in found):.2f} s a try"
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"itself.py: {error}")
