"""Verdicts a minute on one GPU: our evaluator and KernelBench's own script on the same 24 kernels.

    python benchmarks/throughput.py kernelbench=PATH_OF_A_CLONE [only=both|ours|kernelbench] [count=24]
        [timeout_s=30] [their_timeout_s=120] [limit_s=480] [cores=16] [kernels=FOLDER]

The kernels lie in `benchmarks/kernels`: ten CUDA, ten Triton, four that fail (one does not compile, one is
wrong, one writes to memory that is not its own, one hangs). Their four problems, at KernelBench's own sizes,
have inputs of 0.03, 0.12, 0.25 and 6 GiB: about the quartiles of its levels 1 and 2. KernelBench runs the
clone's own `scripts/eval_from_generations.py` in its fastest setting: extensions built beforehand on all
cores, Triton kernels in a run of their own, because a run has one backend. A hanging kernel costs us
`timeout_s` at most and KernelBench `their_timeout_s` (180 by default there, for builds, too). What fails
comes last, where it does no harm to KernelBench's other kernels. A half that is not done after `limit_s` is
stopped and counts with the verdicts that it has. Both start cold and count everything; "after start-up"
leaves out what comes before the first build begins (imports, processes).

`modal`, `litellm` and `openai`, which the script imports and does not use here, are stood in for where they
are not installed. Exit status 0 when the goals are met: ten times KernelBench's rate and 20 verdicts a
minute, from a cold start, and a GPU held for 2 s at the median.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.device.worker import Settings
from evaluators.evaluation import Evaluation
from evaluators.problem import Kernel, Problem
from evaluators.reference.loading import load_problem
from evaluators.scheduler.pool import Pool

KERNELS = Path(__file__).parent / "kernels"
MIN_RATIO, MIN_RATE, MAX_HELD_S = 10.0, 20.0, 2.0
LEVELS = {"cuda": 1, "triton": 2}
"""KernelBench's level for each language: a run of its script has one level and one backend."""
UNUSED = ("modal", "litellm", "openai")
STAND_IN = "import sys\nfrom unittest.mock import MagicMock\n\nsys.modules[__name__] = MagicMock()\n"
READY, BEGUN, ENDED = "Start evaluation on", "[Curr Batch]", "[Curr batch] Evaluation took"
"""What KernelBench writes before the builds and around each evaluation; a progress bar may precede it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line sets."""

    kernelbench: str
    only: str = "both"
    count: int = 24
    timeout_s: float = 30.0
    their_timeout_s: float = 120.0
    limit_s: float = 480.0
    cores: int = os.cpu_count() or 1
    device: str = "cuda"
    kernels: str = str(KERNELS)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One kernel and the file of KernelBench that it is for."""

    name: str
    reference: Path
    kernel: Kernel
    fails: bool


@dataclass(frozen=True, kw_only=True)
class Done:
    """A verdict: when it came and how long the device was given to it, in seconds since the start."""

    correct: bool
    words: str
    at_s: float
    device_s: float


@dataclass(kw_only=True)
class Half:
    """What one side did. `ready_s`: what starting up took, of all its runs; `wall_s`: when it ended."""

    title: str
    done: dict[str, Done] = field(default_factory=dict)
    ready_s: float = 0.0
    wall_s: float = 0.0

    def rate(self, samples: Iterable[Sample], *, cold: bool, all_of_them: bool) -> float:
        """Verdicts a minute. Without those that fail, their time on the device is not counted either."""
        fails = {sample.name for sample in samples if sample.fails and not all_of_them}
        kept = [done for name, done in self.done.items() if name not in fails]
        if not kept:
            return 0.0
        end_s = max(done.at_s for done in kept)
        failed = [done for name, done in self.done.items() if name in fails]
        lost_s = sum(done.device_s for done in failed if done.at_s < end_s)
        return len(kept) / (end_s - lost_s - (0.0 if cold else self.ready_s)) * 60


def load_samples(kernels: Path, kernelbench: Path, count: int) -> list[Sample]:
    """`count` of the kernels, spread evenly, failing ones last; `level1_40/cuda_atomics.py` is for problem 40
    of level 1. Raises FileNotFoundError when the clone lacks a problem."""
    samples = []
    for file in sorted(kernels.glob("level*_*/*.py")):
        level, _, number = file.parent.name.partition("_")
        found = sorted((kernelbench / "KernelBench" / level).glob(f"{number}_*.py"))
        if not found:
            raise FileNotFoundError(f"{kernelbench}: no problem {number} in KernelBench/{level}")
        language = file.stem.partition("_")[0]
        samples.append(
            Sample(
                name=f"{file.parent.name}/{file.stem}",
                reference=found[0],
                kernel=Kernel(source=file.read_text(), language=language),
                fails="_fails_" in file.stem,
            )
        )
    samples.sort(key=lambda sample: sample.fails)
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]


# Our half.


@dataclass(kw_only=True)
class Ours(Half):
    """Our half, with what each evaluation says of itself."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


async def run_ours(samples: Sequence[Sample], options: Options, ours: Ours) -> None:
    """Fills `ours` in as verdicts come."""
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
    """The problem under KernelBench's present rules."""
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
    """Where the time went."""
    print_half(ours)
    print(f"on {ours.environment.get('device')}, isolation {ours.environment.get('isolation')}")
    measured = {name: found for name, found in ours.evaluations.items() if found.device_s > 0}
    rows = {"build, on the cores": [found.build_s for found in ours.evaluations.values()]}
    rows["GPU: given by the pool"] = [ours.done[name].device_s for name in measured]
    rows["  held, of that"] = [found.device_s for found in measured.values()]
    for stage in dict.fromkeys(stage for found in measured.values() for stage in found.stages_s):
        rows[f"    {stage}"] = [
            found.stages_s[stage] for found in measured.values() if stage in found.stages_s
        ]
    print(f"{'seconds':<28}{'median':>9}{'largest':>9}{'sum':>9}{'number':>8}")
    for name, values in rows.items():
        if values:
            print(f"{name:<28}{median(values):9.2f}{max(values):9.2f}{sum(values):9.1f}{len(values):8d}")
    if measured:
        busy = sum(rows["GPU: given by the pool"]) / (ours.wall_s - ours.ready_s)
        print(f"GPU given to a candidate for {busy:.0%} of the time after start-up")


# KernelBench's half.


def lay_out(work: Path, kernelbench: Path, samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """A folder in which the script of the clone finds exactly these kernels, each as the one sample of a
    problem of its own: (language, samples in the order of their numbers)."""
    for folder in ("src", "scripts"):
        shutil.copytree(kernelbench / folder, work / folder)
    runs = {}
    for language, level in LEVELS.items():
        chosen = [sample for sample in samples if sample.kernel.language == language]
        if not chosen:
            continue
        runs[language] = chosen
        problems, kernels = work / "KernelBench" / f"level{level}", work / "runs" / language
        problems.mkdir(parents=True)
        kernels.mkdir(parents=True)
        for number, sample in enumerate(chosen, 1):
            shutil.copy(sample.reference, problems / f"{number}_{sample.reference.name}")
            kernel = kernels / f"level_{level}_problem_{number}_sample_0_kernel.py"
            kernel.write_text(sample.kernel.source)
    stand_ins = work / "stand_ins"
    stand_ins.mkdir()
    for name in UNUSED:
        if importlib.util.find_spec(name) is None:
            (stand_ins / f"{name}.py").write_text(STAND_IN)
    return runs


def run_kernelbench(samples: Sequence[Sample], options: Options, half: Half) -> None:
    """Fills `half` in; its runs, one a language, follow each other."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for language, chosen in lay_out(work, Path(options.kernelbench), samples).items():
            moments, wall_s = run_script(work, language, options, options.limit_s - half.wall_s)
            results = read_results(work / "runs" / language / "eval_results.json")
            for number, (begun_s, ended_s) in enumerate(moments.evaluations, 1):
                correct, words = results.get(number, (False, "no result"))
                half.done[chosen[number - 1].name] = Done(
                    correct=correct,
                    words=words,
                    at_s=half.wall_s + ended_s,
                    device_s=ended_s - begun_s,
                )
            half.ready_s += moments.ready_s
            half.wall_s += wall_s


@dataclass
class Moments:
    """What the script's output tells, in seconds since its start."""

    ready_s: float = 0.0
    evaluations: list[tuple[float, float]] = field(default_factory=list)
    _begun_s: float = 0.0

    def note(self, line: str, now_s: float) -> None:
        """Takes in one line, seen just now."""
        if READY in line:
            self.ready_s = now_s
        elif BEGUN in line:
            self._begun_s = now_s
        elif ENDED in line:
            self.evaluations.append((self._begun_s, now_s))


def run_script(work: Path, language: str, options: Options, limit_s: float) -> tuple[Moments, float]:
    """KernelBench's script on one language; it is killed, with all that it started, after `limit_s`. Returns
    what its output told and its wall time in seconds."""
    on_cores = language == "cuda"  # a Triton kernel cannot be built beforehand there
    command = [
        *(sys.executable, "scripts/eval_from_generations.py"),
        *(f"run_name={language}", f"level={LEVELS[language]}", f"backend={language}", "dataset_src=local"),
        *("num_gpu_devices=1", f"timeout={options.their_timeout_s:g}", "gpu_arch=['Hopper']"),
        *(f"build_cache={on_cores}", f"num_cpu_workers={options.cores}"),
    ]
    path = os.pathsep.join([f"{work}/src", f"{work}/stand_ins", os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    timer = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    moments = Moments()
    last: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            moments.note(line, time.monotonic() - began)
            last = [*last[-40:], line]
        code = process.wait()
    finally:
        timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    wall_s = time.monotonic() - began
    if code:
        how = f"stopped after {limit_s:.0f} s" if code == -signal.SIGKILL else f"exit status {code}"
        print(f"KernelBench's script ({language}): {how}; its last lines:\n{''.join(last)}")
    return moments, wall_s


def read_results(file: Path) -> dict[int, tuple[bool, str]]:
    """Problem number to verdict and words, as far as the script has come."""
    if not file.exists():
        return {}
    return {
        int(number): (bool(found[0]["correctness"]), _words_of_theirs(found[0]))
        for number, found in json.loads(file.read_text()).items()
    }


def _words_of_theirs(found: dict[str, Any]) -> str:
    if found["correctness"]:
        return f"correct, {found['runtime']:.3f} ms"
    why = [v for k, v in found["metadata"].items() if re.search("error|issue", k) and "name" not in k]
    words = f"{'compiled' if found['compiled'] else 'not compiled'}: {why[0] if why else ''}"
    return " ".join(words.split())[:60]


# Both.


def print_half(half: Half) -> None:
    """The verdicts of one side as they came."""
    wall, ready = f"{half.wall_s:.1f} s", f"{half.ready_s:.1f} s"
    print(f"\n{half.title}: {len(half.done)} verdicts in {wall}, of which {ready} to start up")
    print(f"{'kernel':<38}{'at s':>7}{'device s':>10}  verdict")
    for name, done in half.done.items():
        print(f"{name:<38}{done.at_s:7.1f}{done.device_s:10.1f}  {done.words}")


def compare(samples: Sequence[Sample], ours: Half, theirs: Half) -> float:
    """Prints the rates and where the verdicts differ; returns the ratio of the rates for all from cold."""
    print(f"\n{'verdicts a minute':<46}{'ours':>8}{'KernelBench':>13}{'ratio':>8}")
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
    """Whether all that could be measured is met."""
    goals = {}
    if ratio:
        goals[f"{ratio:8.1f} x KernelBench's rate (goal: at least {MIN_RATIO:g})"] = ratio >= MIN_RATIO
    held = [found.device_s for found in ours.evaluations.values() if found.device_s > 0] if ours else []
    if held:
        goals[f"{rate:8.1f} verdicts a minute (goal: at least {MIN_RATE:g})"] = rate >= MIN_RATE
        goals[f"{median(held):8.2f} s GPU held (goal: at most {MAX_HELD_S:g})"] = median(held) <= MAX_HELD_S
    print()
    for line, met in goals.items():
        print(f"{'ok    ' if met else 'MISSED'} {line}")
    return bool(goals) and all(goals.values())


def attempt(half: Half, run: Callable[[], None]) -> None:
    """What goes wrong in one half is told and leaves the other its chance."""
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
        raise ValueError("kernelbench=PATH names a clone of KernelBench")
    return Options(**given)


def main() -> int:
    """Runs the halves; 0 when every goal is met."""
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
