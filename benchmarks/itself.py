"""Measures the reference against itself: the speedup is 1, and the interval must contain it.

    python benchmarks/itself.py [problem=level1/conv2d] [tries=100] [device=auto] [thorough=false] [busy=0]

`thorough=true` measures as for a search's winner, false as for its variants, while `busy` processes keep a
core busy each. Prints the number of tries whose interval contains 1.00 (goal: 94 of 100), the spread of the
speedups, the interval's half-width and how long the device was used; a line after every tenth try. The exit
status is 0 when at least 94 % of the intervals contain 1.00.
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
from evaluators.records.timing import Effort

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
    effort = Effort.THOROUGH if given.get("thorough", "false") == "true" else Effort.USUAL
    with tempfile.TemporaryDirectory() as root, busy(int(given.get("busy", "0"))):
        worker = Worker(root=Path(root), settings=build(config.evaluator))
        for number in range(tries):
            evaluation = worker.measure(problem, kernel, b"", effort=effort)
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
    """Runs this number of busy processes, each in its own session, because Linux shares cores among
    sessions."""
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
    """How many of the intervals contain 1.00."""
    return sum(timing.speedup_low <= 1 <= timing.speedup_high for timing, _ in found)


def summary(found: list[tuple[Timing, float]], tries: int) -> str:
    """A line about `tries`; those in `found` got a time."""
    if not found:
        return f"0 of {tries} intervals contain 1.00"
    speedups = sorted(timing.speedup for timing, _ in found)
    half = statistics.median((t.speedup_high - t.speedup_low) / 2 / t.speedup for t, _ in found)
    return (
        f"{holding(found)} of {tries} intervals contain 1.00; median speedup "
        f"{statistics.median(speedups):.4f}, {speedups[0]:.3f} to {speedups[-1]:.3f}; median half-width "
        f"{half:.2%}; device used {statistics.median(s for _, s in found):.2f} s per try"
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"itself.py: {error}")
