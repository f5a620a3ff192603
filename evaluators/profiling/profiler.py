"""Profiles a kernel at the highest level that this machine allows, apart from any measurement.

The static and the trace level come from one process, which is confined as candidates are (see
`profiled_call.py`). The counters come from another under NVIDIA's profiler `ncu`, which cannot follow a
process into its namespaces: that process is confined by the other mechanisms. If `ncu` does not work with
them, there are no counters, unless the caller allows a process with limits alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluators import PACKAGE
from evaluators.base.cause import first_line
from evaluators.build.builder import MAX_PROCESSES, build_environment
from evaluators.device.settings import Settings
from evaluators.isolation import confinement
from evaluators.isolation.scratch import SOURCE, remove, too_much_written
from evaluators.profiling import compilers, counters
from evaluators.profiling.binaries import static_facts
from evaluators.profiling.diagnosing import diagnosis_of, no_launches
from evaluators.profiling.facts import (
    CompiledFunction,
    CounterFacts,
    KernelLaunch,
    ProfileFacts,
    ScalarLoop,
    StaticFacts,
    Task,
    TraceFacts,
)
from evaluators.profiling.launches import trace_facts
from evaluators.profiling.profiled_call import RESULT, ProfiledCall, ProfileOrder
from evaluators.profiling.vectorization import parse_report
from evaluators.records.diagnosis import Diagnosis, Level
from evaluators.records.evaluation import Roofline
from evaluators.records.problem import Kernel, Problem
from evaluators.system import process_tree
from evaluators.system.cuda_driver import Gpu, first_gpu

OFF, AUTO = "off", "auto"
PROFILES = (OFF, *(level.value for level in Level), AUTO)
"""The values of the key `profile`."""
PROGRAM = "evaluators.profiling.profiled_call"
SECTIONS = (
    "SpeedOfLight",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "ComputeWorkloadAnalysis",
    "Occupancy",
    "LaunchStats",
    "WarpStateStats",
    "SchedulerStats",
    "SourceCounters",
)
"""The parts of ncu's report that the rules and the text need."""
MOST_LAUNCHES = 20
NCU_FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute", "/opt/nvidia/nsight-compute/*")
FORBIDDEN = "ERR_NVGPUCTRPERM"
NCU_ERROR = re.compile(r"==ERROR== *(.*)")
CPP_SOURCE = "main.cpp"
"""The name under which `load_inline` saves C++ code."""
MOST_RESULT_BYTES, MOST_SOURCE_CHARACTERS = 256 * 2**20, 10**6
WATCH_S, OUTPUT_BYTES = 0.1, 4000
SMALLEST_ALLOCATION = 16
"""Registers that a thread has at least when it runs."""


class ProfileFailed(Exception):
    """The kernel could not be profiled at all; the message says why."""


@dataclass(frozen=True, kw_only=True)
class ProfileLimits:
    """What a profile may do: `seconds` for the process of each level, and whether `ncu` may run a kernel
    `unconfined`, with the user's rights, if it does not work with the sandbox."""

    seconds: float = 240.0
    unconfined: bool = False

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"profile_timeout_s is {self.seconds:g}; it must be positive")


class KernelProfiler:
    """Profiles kernels one by one, on this machine's device. Once `ncu` is known not to be allowed to read
    counters, it is not tried again."""

    def __init__(
        self, settings: Settings, limits: ProfileLimits | None = None, *, visible_gpu: str = ""
    ) -> None:
        """`settings` are the evaluator's: its isolation and its limits on memory and files apply.
        `visible_gpu` is the value of CUDA_VISIBLE_DEVICES for its processes, "" to leave it unchanged."""
        self._settings, self._limits = settings, limits or ProfileLimits()
        self._visible = {"CUDA_VISIBLE_DEVICES": visible_gpu} if visible_gpu else {}
        self._no_counters = ""
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends the profile that is under way in another thread, and any later one."""
        self._stopping.set()

    async def profile_in_thread(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        wanted: str,
        roofline: Roofline | None,
        call_ms: float | None,
    ) -> Diagnosis:
        """As `profile`, in another thread. Cancelling it ends the profile, and waits until its processes have
        ended."""
        profiling = asyncio.create_task(
            asyncio.to_thread(
                self.profile, problem, kernel, wanted=wanted, roofline=roofline, call_ms=call_ms
            )
        )
        try:
            await asyncio.wait({profiling})
        except asyncio.CancelledError:
            self.stop()
            await asyncio.gather(profiling, return_exceptions=True)
            raise
        return profiling.result()

    def profile(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        wanted: str = AUTO,
        roofline: Roofline | None = None,
        call_ms: float | None = None,
    ) -> Diagnosis:
        """The diagnosis of a kernel.

        Args:
            problem: the problem that it solves; of several cases, the one with the largest weight.
            kernel: the kernel.
            wanted: the highest level to reach, or `auto`.
            roofline: the problem's roofline, from an evaluation.
            call_ms: the kernel's time, likewise.

        Raises:
            ProfileFailed: if the kernel fails, or takes too long.
            OSError: if there is no GPU for a problem that needs one.
        """
        if wanted not in PROFILES[1:]:
            raise ValueError(f"profile={wanted} must be one of {', '.join(PROFILES[1:])}")
        problem = _one_case(problem)
        environment = confinement.clean_environment() | self._visible
        gpu = first_gpu(environment) if problem.device == "cuda" else None
        task = _task(problem, roofline)
        missing: dict[Level, str] = {}
        seconds: dict[str, float] = {}
        start = time.monotonic()
        found, said, cpp = self._plain(problem, kernel, gpu, runs=wanted != Level.STATIC and gpu is not None)
        seconds["static and trace"] = round(time.monotonic() - start, 1)
        facts = ProfileFacts(task=task, call_ms=call_ms)
        if gpu is None:
            facts = replace(facts, static=_in_kernel(parse_report(said, CPP_SOURCE, cpp), kernel))
            if wanted != Level.STATIC:
                facts = _with_timing(facts, missing)
            if wanted in (Level.COUNTERS, AUTO):
                missing[Level.COUNTERS] = "a CPU's counters are not read"
            return diagnosis_of(facts, missing=missing, isolation=found.isolation, seconds=seconds)
        facts = _on_gpu(facts, found, said, gpu, missing)
        if wanted == Level.STATIC:
            missing.pop(Level.TRACE, None)
        isolation = found.isolation
        if wanted in (Level.COUNTERS, AUTO):
            start = time.monotonic()
            try:
                read, isolation = self._counters(problem, kernel, gpu)
                facts = replace(facts, counters=read)
            except (OSError, RuntimeError, ValueError, ProfileFailed) as error:
                missing[Level.COUNTERS] = first_line(error)
            seconds[Level.COUNTERS.value] = round(time.monotonic() - start, 1)
        return diagnosis_of(facts, device=found.device, missing=missing, isolation=isolation, seconds=seconds)

    def _plain(
        self, problem: Problem, kernel: Kernel, gpu: Gpu | None, *, runs: bool
    ) -> tuple[ProfiledCall, str, list[str]]:
        """What a confined process finds, what the compilers said, and the C++ code that they saw. Raises
        ProfileFailed."""
        with self._folder(kernel) as folder:
            order = self._order(problem, folder, gpu, isolate=True, runs=runs)
            status, output = self._run([], order, folder, gpu)
            found = _result(folder / "scratch" / RESULT)
            if status != 0 or found is None:
                raise ProfileFailed(f"the kernel could not be profiled (exit status {status}):\n{output}")
            self._require_isolation(found.isolation)
            return found, compilers.reports(folder / "scratch"), _cpp_lines(folder / "scratch")

    def _counters(self, problem: Problem, kernel: Kernel, gpu: Gpu) -> tuple[CounterFacts, str]:
        """The counters and the confinement of the process. Raises RuntimeError with the reason if there are
        none."""
        if self._no_counters:
            raise RuntimeError(self._no_counters)
        tool = find_ncu()
        if tool is None:
            raise RuntimeError("ncu is missing; install NVIDIA Nsight Compute, or add its folder to PATH")
        if not counters.is_installed():
            raise RuntimeError(counters.INSTALL)
        tries = [True]
        if self._limits.unconfined and self._settings.isolation == "limits":
            tries.append(False)
        if confinement.missing("limits+landlock+seccomp", self._settings.isolation):
            raise RuntimeError(
                f"ncu cannot follow a process into namespaces, and evaluator.isolation="
                f"{self._settings.isolation} demands them"
            )
        reason = ""
        for confined in tries:
            with self._folder(kernel) as folder:
                order = self._order(
                    problem, folder, gpu, isolate=False, runs=True, confined=confined, profiler=True
                )
                report = folder / "report"
                status, output = self._run(_ncu(tool, report), order, folder, gpu)
                if FORBIDDEN in output:
                    self._no_counters = (
                        f"this user may not read the GPU's counters ({FORBIDDEN}); an administrator can "
                        "allow it with the driver's option NVreg_RestrictProfilingToAdminUsers=0"
                    )
                    raise RuntimeError(self._no_counters)
                found = _result(folder / "scratch" / RESULT)
                file = report.with_suffix(".ncu-rep")
                if status == 0 and found is not None and file.exists():
                    return counters.read_report(file), found.isolation
                reason = _ncu_reason(status, output)
        if tries == [True]:
            reason += "; if it does not work with the sandbox, profile_unconfined=true does without"
        raise RuntimeError(reason)

    @contextlib.contextmanager
    def _folder(self, kernel: Kernel) -> Iterator[Path]:
        """A folder for one process: in it `scratch`, which the candidate may write to."""
        folder = Path(tempfile.mkdtemp(prefix="ideatree-profile-"))
        try:
            (folder / "scratch").mkdir(mode=0o700)
            (folder / "scratch" / SOURCE).write_text(kernel.source)
            yield folder
        finally:
            remove(folder)

    def _order(
        self,
        problem: Problem,
        folder: Path,
        gpu: Gpu | None,
        *,
        isolate: bool,
        runs: bool,
        confined: bool = True,
        profiler: bool = False,
    ) -> ProfileOrder:
        return ProfileOrder(
            problem=problem,
            scratch=str(folder / "scratch"),
            devices=gpu.files if gpu is not None else (),
            confined=confined,
            isolate=isolate,
            profiler=profiler,
            runs=runs,
            cpu_s=int(self._limits.seconds) * 64,
            max_processes=MAX_PROCESSES,
        )

    def _run(
        self, before: Sequence[str], order: ProfileOrder, folder: Path, gpu: Gpu | None
    ) -> tuple[int, str]:
        """Runs the program, with `before` in front of its command line. Returns its exit status, and the end
        of what it wrote. Raises ProfileFailed if it exceeds a limit."""
        scratch, path = folder / "scratch", folder / "order.json"
        path.write_text(json.dumps(order.to_json()))
        environment = confinement.clean_environment(scratch) | self._visible
        paths = [str(PACKAGE.parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment |= compilers.stand_ins(scratch, cuda=gpu is not None)
        if gpu is not None:
            environment |= gpu.variables | build_environment(gpu.architecture)
        with (folder / "output").open("w+b") as output:
            process = subprocess.Popen(
                [*before, sys.executable, "-P", "-m", PROGRAM, str(path)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                reason = self._watch(process, scratch)
            finally:
                process_tree.kill_tree(process.pid)
                process.wait()
            if reason:
                raise ProfileFailed(f"the profiled kernel {reason}")
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - OUTPUT_BYTES))
            return process.returncode, output.read().decode(errors="replace")

    def _watch(self, process: subprocess.Popen[bytes], scratch: Path) -> str:
        """Waits for the process's end. Returns which limit it exceeded before; "" if none."""
        end = time.monotonic() + self._limits.seconds
        most_bytes = int(self._settings.memory_gb * 2**30)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WATCH_S)
                return ""
            if self._stopping.is_set():
                return "was stopped"
            if time.monotonic() > end:
                return f"did not end within {self._limits.seconds:g} s"
            family = [process.pid, *process_tree.descendants(process.pid)]
            if process_tree.memory_bytes(family) > most_bytes:
                return f"took more than {self._settings.memory_gb:g} GB of memory"
            if excess := too_much_written(scratch, int(self._settings.scratch_gb * 2**30)):
                return excess

    def _require_isolation(self, reached: str) -> None:
        if lacking := confinement.missing(reached, self._settings.isolation):
            raise ProfileFailed(
                f"evaluator.isolation={self._settings.isolation} is not available: this machine provides "
                f"{reached}, without {' and '.join(lacking)}"
            )


@functools.cache
def find_ncu() -> str | None:
    """The path of NVIDIA's profiler; None if it is not installed."""
    homes = [Path(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    more = [path for pattern in NCU_FOLDERS for path in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    search = os.pathsep.join([os.environ.get("PATH", ""), *map(str, (*homes, *more))])
    return shutil.which("ncu", path=search)


def _ncu(tool: str, report: Path) -> list[str]:
    """The profiler's command line. It does not change clocks, which needs more rights, and replays each
    kernel with cold caches."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    return [
        tool,
        *("--target-processes", "all", "--profile-from-start", "off", "--clock-control", "none"),
        *("--launch-count", str(MOST_LAUNCHES), *sections, "--force-overwrite", "--export", str(report)),
    ]


def _ncu_reason(status: int, output: str) -> str:
    errors = NCU_ERROR.findall(output)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    what = errors[-1] if errors else lines[-1] if lines else "it wrote nothing"
    return f"ncu failed with exit status {status}: {what}"


def _one_case(problem: Problem) -> Problem:
    if not problem.cases:
        return problem
    return problem.of_case(max(problem.cases, key=lambda case: case.weight))


def _task(problem: Problem, roofline: Roofline | None) -> Task:
    if roofline is None:
        return Task(dtype=problem.dtype, lower=problem.lower_precisions)
    return Task(
        dtype=problem.dtype,
        lower=problem.lower_precisions,
        operations=roofline.operations,
        least_bytes=roofline.bytes,
        floor_ms=roofline.floor_ms,
    )


def _with_timing(facts: ProfileFacts, missing: dict[Level, str]) -> ProfileFacts:
    """On a CPU: the evaluator's own timing is the trace level."""
    if facts.call_ms is None or facts.task.floor_ms is None:
        missing[Level.TRACE] = "on a CPU it needs the kernel's time and roofline, from an evaluation"
        return facts
    return replace(facts, trace=no_launches())


def _on_gpu(
    facts: ProfileFacts, found: ProfiledCall, said: str, gpu: Gpu, missing: dict[Level, str]
) -> ProfileFacts:
    """The facts with what the process found. Raises ProfileFailed if it is not of the expected form."""
    try:
        trace = trace_facts([_launch(each) for each in found.launches], found.calls)
        static = static_facts(found.resources, found.sass, compilers.cuda_warnings(said))
        facts = replace(
            facts,
            capability=gpu.architecture,
            multiprocessors=int(found.multiprocessors),
        )
    except (TypeError, ValueError, IndexError) as error:
        raise ProfileFailed(f"the profiled process sent an invalid result: {error}") from error
    if trace.launches:
        facts = replace(facts, trace=trace)
    else:
        missing[Level.TRACE] = found.untraced or "no kernel ran on the GPU"
    if static.functions:
        return replace(facts, static=_that_ran(static, trace))
    missing[Level.STATIC] = found.no_code or "the binaries have no function"
    return facts


def _launch(row: Sequence[Any]) -> KernelLaunch:
    name, start_ns, end_ns, grid, block, registers, shared_bytes = row
    return KernelLaunch(
        name=str(name),
        start_ns=int(start_ns),
        duration_ns=int(end_ns) - int(start_ns),
        grid=_three(grid),
        block=_three(block),
        registers=int(registers),
        shared_bytes=int(shared_bytes),
    )


def _three(values: Sequence[Any]) -> tuple[int, int, int]:
    x, y, z = map(int, values)
    return x, y, z


def _that_ran(static: StaticFacts, trace: TraceFacts) -> StaticFacts:
    """Without the functions of configurations that an autotuner tried and did not choose: those with another
    number of registers than every launch."""
    ran = {each.registers for each in trace.launches}

    def matches(function: CompiledFunction) -> bool:
        return max(function.registers, SMALLEST_ALLOCATION) in ran

    chosen = tuple(filter(matches, static.functions))
    return replace(static, functions=chosen) if chosen else static


def _cpp_lines(scratch: Path) -> list[str]:
    """The C++ code of the kernel's extension, as it was compiled."""
    found = next((path for path in sorted(scratch.rglob(CPP_SOURCE)) if not path.is_symlink()), None)
    if found is None:
        return []
    with found.open(errors="replace") as file:
        return file.read(MOST_SOURCE_CHARACTERS).splitlines()


def _in_kernel(static: StaticFacts, kernel: Kernel) -> StaticFacts:
    """The loops with their lines in the kernel's file, where they can be told: the extension adds lines."""
    lines = [line.strip() for line in kernel.source.splitlines()]

    def placed(loop: ScalarLoop) -> ScalarLoop:
        if not loop.source or lines.count(loop.source) != 1:
            return loop
        return replace(loop, line=lines.index(loop.source) + 1)

    return replace(static, scalar_loops=tuple(map(placed, static.scalar_loops)))


def _result(path: Path) -> ProfiledCall | None:
    """What the process wrote; None if there is nothing to read. The candidate may have written it."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return ProfiledCall.from_json(json.loads(file.read(MOST_RESULT_BYTES)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
