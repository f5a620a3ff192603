"""Compares verdicts per minute on one GPU: our evaluator and KernelBench's script on the same 24 kernels.

    python benchmarks/throughput.py kernelbench=PATH_OF_A_CLONE [only=both|ours|kernelbench] [count=24]
        [timeout_s=30] [their_timeout_s=120] [limit_s=480] [cores=16] [kernels=FOLDER]

The kernels are in `benchmarks/kernels`: ten CUDA, ten Triton, and four that fail (one does not compile, one
is wrong, one writes to memory it does not own, one hangs). Their four problems, at KernelBench's own sizes,
have inputs of 0.03, 0.12, 0.25 and 6 GiB: about the quartiles of its levels 1 and 2. KernelBench runs the
clone's `scripts/eval_from_generations.py` in its fastest setting: extensions are built in advance on all
cores, and Triton kernels have a separate run, because a run has one backend. A hanging kernel costs us at
most `timeout_s` and KernelBench `their_timeout_s` (its default is 180, also for builds). The failing kernels
come last, where they do not disturb KernelBench's other kernels. A half that is not done after `limit_s` is
stopped and counts with its verdicts so far. Both start cold and count everything; "after start-up" leaves out
the time before the first build begins (imports, processes).

The script imports `modal`, `litellm` and `openai` but does not use them here; stubs replace them if they are
not installed. The exit status is 0 when the goals are met: ten times KernelBench's rate, 20 verdicts per
minute from a cold start, and a median of 2 s of GPU time per kernel.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.throughput_halves import Done, Half, Options, Sample, load_samples
from benchmarks.throughput_kernelbench import run_kernelbench
from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Problem
from evaluators.records.time_spent import DeviceLease, summed, table
from evaluators.reference.loading import load_problem
from evaluators.scheduler.pool import Pool

MIN_RATIO, MIN_RATE, MAX_HELD_S = 10.0, 20.0, 2.0


# Our half.


@dataclass(kw_only=True)
class Ours(Half):
    """Our half, with the evaluations' own figures."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


async def run_ours(samples: Sequence[Sample], options: Options, ours: Ours) -> None:
    """Adds verdicts to `ours` as they arrive."""
    from evaluators.scheduler.ray_host import RayHost

    began = time.monotonic()
    problems = {sample.reference: problem_of(sample.reference, options.device) for sample in samples}
    settings = Settings(timeout_s=options.timeout_s)
    pool = Pool(RayHost(settings=settings, on_gpu=options.device == "cuda"))

    async def one(sample: Sample) -> None:
        entered: dict[str, float] = {}

        def note(stage: str) -> None:
            ours.ready_s = ours.ready_s or time.monotonic() - began
            entered.setdefault(stage, time.monotonic())

        found = await pool.evaluate(problems[sample.reference], sample.kernel, on_stage=note)
        now = time.monotonic()
        ours.evaluations[sample.name] = found
        ours.done[sample.name] = Done(
            correct=found.timing is not None,
            words=words_of(found),
            at_s=now - began,
            device_s=now - entered.get("measuring", now),
        )

    try:
        async with asyncio.timeout(options.limit_s - (time.monotonic() - began)):
            ours.environment, *_ = await asyncio.gather(
                pool.describe(problems[samples[0].reference]), *(one(sample) for sample in samples)
            )
    finally:
        ours.wall_s = time.monotonic() - began
        pool.close()


def problem_of(reference: Path, device: str) -> Problem:
    """The problem under KernelBench's current rules."""
    return load_problem(
        "file",
        path=str(reference),
        device=device,
        tolerance="kernelbench_v02",
        libraries="any",
        floor=False,
        allow_degenerate=True,
    )


def words_of(found: Evaluation) -> str:
    """A verdict in one line."""
    if found.timing:
        return f"correct, {found.timing.kernel_ms:.3f} ms, {found.speedup:.2f} x eager"
    return f"{found.status.value}: {found.cause[:60]}"


def print_ours(ours: Ours) -> None:
    """Prints where the time went."""
    print_half(ours)
    print(f"on {ours.environment.get('device')}, isolation {ours.environment.get('isolation')}")
    found = list(ours.evaluations.values())
    print(*table(found), sep="\n")
    for device, each in sorted(by_device(found).items()):
        held, idle = (seconds / (ours.wall_s - ours.ready_s) for seconds in (each.held_s, each.idle_s))
        print(f"device {device}: held for {held:.0%} of the time after start-up, idle for {idle:.0%} of it")
        print("  although a kernel was being built for it or waited")


def by_device(found: Sequence[Evaluation]) -> dict[str, DeviceLease]:
    """The sum of all leases of each device."""
    leases = [each.lease for each in found if each.lease is not None and each.lease.device]
    devices = {each.device for each in leases}
    sums = (summed([each for each in leases if each.device == device]) for device in devices)
    return {each.device: each for each in sums if each is not None}


# Both.


def print_half(half: Half) -> None:
    """Prints the verdicts of one side in order."""
    wall, ready = f"{half.wall_s:.1f} s", f"{half.ready_s:.1f} s"
    print(f"\n{half.title}: {len(half.done)} verdicts in {wall}, of which {ready} to start up")
    print(f"{'kernel':<38}{'at s':>7}{'device s':>10}  verdict")
    for name, done in half.done.items():
        print(f"{name:<38}{done.at_s:7.1f}{done.device_s:10.1f}  {done.words}")


def compare(samples: Sequence[Sample], ours: Half, theirs: Half) -> float:
    """Prints the rates and where the verdicts differ; returns the ratio of the rates for all from cold."""
    print(f"\n{'verdicts per minute':<46}{'ours':>8}{'KernelBench':>13}{'ratio':>8}")
    ratios = []
    for all_of_them in (True, False):
        for cold in (True, False):
            mine, other = (half.rate(samples, cold=cold, all_of_them=all_of_them) for half in (ours, theirs))
            what = "all" if all_of_them else "without those that fail"
            ratios.append(mine / other if other else 0.0)
            start = "from a cold start" if cold else "after start-up"
            print(f"{f'{what}, {start}':<46}{mine:8.1f}{other:13.2f}{ratios[-1]:8.1f}")
    if evaluations_s := sum(done.device_s for done in theirs.done.values()):
        alone = len(theirs.done) / evaluations_s * 60
        print(f"{'KernelBench, evaluations alone, without builds':<54}{alone:13.2f}")
    both = ours.done.keys() & theirs.done.keys()
    differ = sorted(name for name in both if ours.done[name].correct != theirs.done[name].correct)
    print(f"{len(both) - len(differ)} of {len(both)} verdicts agree")
    for name in differ:
        print(f"  {name}: ours {ours.done[name].words} | KernelBench {theirs.done[name].words}")
    return ratios[0]


def print_goals(ours: Ours | None, ratio: float, rate: float) -> bool:
    """Prints the goals; returns whether all measured ones are met."""
    goals = {}
    if ratio:
        goals[f"{ratio:8.1f} x KernelBench's rate (goal: at least {MIN_RATIO:g})"] = ratio >= MIN_RATIO
    held = [found.device_s for found in ours.evaluations.values() if found.device_s > 0] if ours else []
    if held:
        goals[f"{rate:8.1f} verdicts per minute (goal: at least {MIN_RATE:g})"] = rate >= MIN_RATE
        goals[f"{median(held):8.2f} s of GPU time (goal: at most {MAX_HELD_S:g})"] = (
            median(held) <= MAX_HELD_S
        )
    print()
    for line, met in goals.items():
        print(f"{'ok    ' if met else 'MISSED'} {line}")
    return bool(goals) and all(goals.values())


def attempt(half: Half, run: Callable[[], None]) -> None:
    """Prints an error in one half, so that the other can still run."""
    try:
        run()
    except Exception:
        print(f"\n{half.title} failed:")
        traceback.print_exc(file=sys.stdout)


def parse(arguments: Sequence[str]) -> Options:
    """`key=value` for each field of Options. Raises ValueError for another key or value."""
    kinds = {"count": int, "cores": int, "timeout_s": float, "their_timeout_s": float, "limit_s": float}
    given: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in Options.__dataclass_fields__:
            known = ", ".join(Options.__dataclass_fields__)
            raise ValueError(f"{argument}: expected key=value with a key of {known}")
        given[key] = kinds.get(key, str)(value)
    if "kernelbench" not in given:
        raise ValueError("kernelbench is not given; give a clone of KernelBench as kernelbench=PATH")
    return Options(**given)


def main() -> int:
    """Runs the halves; returns 0 if every goal is met."""
    try:
        options = parse(sys.argv[1:])
        samples = load_samples(Path(options.kernels), Path(options.kernelbench), options.count)
    except (ValueError, OSError) as error:
        print(f"throughput.py: {error}\n{__doc__}", file=sys.stderr)
        return 2
    print(f"{len(samples)} kernels, {sum(s.fails for s in samples)} of them made to fail", flush=True)
    ours, theirs = Ours(title="ours"), Half(title="KernelBench")
    # Ours first: a hanging kernel of the other half may leave the GPU busy.
    if options.only in ("both", "ours"):
        attempt(ours, lambda: asyncio.run(run_ours(samples, options, ours)))
        print_ours(ours)
        sys.stdout.flush()
    if options.only in ("both", "kernelbench"):
        attempt(theirs, lambda: run_kernelbench(samples, options, theirs))
        print_half(theirs)
    ratio = compare(samples, ours, theirs)
    return 0 if print_goals(ours, ratio, ours.rate(samples, cold=True, all_of_them=True)) else 1


if __name__ == "__main__":
    sys.exit(main())
