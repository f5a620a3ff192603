"""Holds one device and gives verdicts: owns the processes of a measurement, the deadlines and the statuses.

It never imports a candidate and never touches the device itself, so nothing that a kernel does to either
can take it down.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluators import sandbox
from evaluators.build import build_environment, runner_spec, scratch_folder
from evaluators.build_cache import BuildCache
from evaluators.channel import Channel, ChannelClosed, ChannelTimeout, Message
from evaluators.cuda_driver import Gpu, first_gpu
from evaluators.evaluation import Correctness, Evaluation, Roofline, Status, Timing
from evaluators.problem import Kernel, Problem
from evaluators.roofline import default_cache
from evaluators.scratch import too_much_written
from evaluators.standby import Standby
from evaluators.timing import SABOTAGED, Plan
from evaluators.zygote import Ward, Zygote, start_module

logger = logging.getLogger(__name__)

WATCH_S = 0.05
MAX_PROCESSES = 256
ACCUSATIONS = 2
"""So often must a kernel have slowed the baseline down: others may use the device for a while, too, and who
does it on purpose does it again."""

CPU_VARIABLES = {
    "OMP_WAIT_POLICY": "active",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
"""For runners on a CPU. Memory that is freed stays with the process: the page faults of large outputs would
otherwise cost more than many kernels, and differ between two processes that do the same. OpenMP's threads do
not sleep between calls (they are stopped): to wake one up takes up to 15 ms on a virtual machine."""


class WorkerBroken(Exception):
    """A process of the evaluator's own failed: no verdict on the kernel. Start a new worker, or ask again."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a worker measures. Times in seconds, `block_ms` per block of calls."""

    build_timeout_s: float = 180.0
    timeout_s: float = 30.0
    thorough_timeout_s: float = 300.0
    open_timeout_s: float = 300.0
    memory_gb: float = 16.0
    scratch_gb: float = 4.0
    build_cache_gb: float = 4.0
    """Disk for builds kept across runs, in the user's cache folder; 0 keeps none."""
    isolation: str = "limits"
    """The least level of `sandbox.LEVELS` that candidates must be confined by."""
    max_calls: int = 256
    plan: Plan = field(default_factory=lambda: Plan(block_ms=10.0, precision=0.02, max_s=1.0))
    thorough_plan: Plan = field(default_factory=lambda: Plan(block_ms=20.0, precision=0.005, max_s=5.0))
    compile_mode: str = "max-autotune-no-cudagraphs"
    """Mode of the `torch.compile` baseline; "" leaves that baseline out."""
    threads: int | None = None
    """CPU threads of kernels and baselines; None leaves it to them (all cores)."""

    def plan_of(self, thorough: bool) -> Plan:
        """How long a measurement is."""
        return self.thorough_plan if thorough else self.plan

    @property
    def build_cache(self) -> BuildCache | None:
        """Where builds are kept."""
        return BuildCache(max_bytes=int(self.build_cache_gb * 2**30)) if self.build_cache_gb > 0 else None

    def __post_init__(self) -> None:
        limits = (
            "build_timeout_s",
            "timeout_s",
            "thorough_timeout_s",
            "open_timeout_s",
            "memory_gb",
            "scratch_gb",
            "max_calls",
        )
        for name in (*limits, *(["threads"] if self.threads is not None else [])):
            if not getattr(self, name) > 0:
                raise ValueError(f"evaluator.{name} is {getattr(self, name)}; it must be positive")
        sandbox.missing("", self.isolation)


class Worker:
    """One device's evaluator. Not thread-safe: one measurement at a time."""

    def __init__(self, *, root: Path, settings: Settings, visible_gpu: str = "") -> None:
        """`root`: the folder for scratch folders, the same as the builds'. `visible_gpu`: the value of
        CUDA_VISIBLE_DEVICES for its processes, "" to leave it as it is."""
        self._root, self._settings = root, settings
        self._environment = sandbox.clean_environment() | CPU_VARIABLES
        if settings.threads is not None:
            self._environment["OMP_NUM_THREADS"] = str(settings.threads)
        if visible_gpu:
            self._environment["CUDA_VISIBLE_DEVICES"] = visible_gpu
        self._referee: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._zygote: Zygote | None = None
        self._eager: Ward | None = None
        self._compiled: Ward | None = None
        self._coming: Ward | None = None
        self._standby: Standby | None = None
        self._asked_compiled = False
        self._problem: Problem | None = None
        self._gpu: Gpu | None = None
        self._facts: dict[str, str] = {}

    def prepare(self) -> None:
        """Starts what every problem needs, if it is not running. Raises ChannelClosed or OSError."""
        if self._zygote is not None and self._channel is not None:
            return
        try:
            # Threads of the referee's that spin after work of their own would disturb the block that follows.
            quiet = self._environment | {"OMP_WAIT_POLICY": "passive"}
            self._referee, self._channel = start_module("evaluators.referee", quiet)
            self._zygote = Zygote(self._environment)  # both import torch: side by side
        except (ChannelClosed, OSError):
            self.close()
            raise

    def open(self, problem: Problem) -> dict[str, str]:
        """Starts what is not running and opens the problem: reference, baseline, shared memory. Returns
        the facts of device and software. Raises WorkerBroken with the reason."""
        if self._problem is not None and self._problem.id == problem.id:
            return self._facts
        try:
            self._start(problem)
            answer = self._await(self._eager_ward(), self._settings.open_timeout_s)
        except (ChannelClosed, ChannelTimeout, OSError) as error:
            self.close()
            raise WorkerBroken(f"the evaluator's own processes did not come up: {error}") from error
        if answer.get("op") == "unfit":
            self.close()
            raise WorkerBroken(
                f"the reference cannot judge a kernel: {answer['findings']} "
                "(problem.allow_degenerate=true lets it, all the same)"
            )
        if answer.get("op") != "opened":
            self.close()
            raise WorkerBroken(f"the reference cannot be run:\n{answer.get('error', answer)}")
        self._facts = {key: str(value) for key, value in answer["facts"].items()}
        if missing := sandbox.missing(self._facts["isolation"], self._settings.isolation):
            self.close()
            raise WorkerBroken(
                f"evaluator.isolation={self._settings.isolation} is not to be had here: this machine gives "
                f"{self._facts['isolation']}, without {' and '.join(missing)}"
            )
        self._problem = problem
        return self._facts

    def measure(
        self,
        problem: Problem,
        kernel: Kernel,
        archive: bytes,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """Checks and times a built kernel; `on_stage` is told when a stage begins. Raises WorkerBroken when
        the fault is not the kernel's."""
        facts = self.open(problem)
        stages = Stages(on_stage)
        for _ in range(ACCUSATIONS):
            with scratch_folder(problem, kernel, self._root, archive) as scratch:
                verdict = self._try_candidate(scratch, thorough, stages)
            if verdict.get("rule") != SABOTAGED:
                break
            self._require_recovery(verdict, thorough)
        canary = {"canary_ms": verdict["canary_ms"]} if "canary_ms" in verdict else {}
        return _evaluation(verdict, facts | canary, stages.seconds())

    def close(self) -> None:
        """Ends every process."""
        if self._zygote is not None:
            self._zygote.close()
        if self._channel is not None:
            self._channel.close()
        if self._referee is not None:
            sandbox.kill_tree(self._referee.pid)
            self._referee.wait()
        self._zygote = self._channel = self._referee = None
        self._eager = self._compiled = self._coming = self._standby = self._problem = None
        self._asked_compiled = False

    def _start(self, problem: Problem) -> None:
        """The processes stay from problem to problem (they have imported torch), but for the baselines."""
        self.prepare()
        assert self._channel is not None
        assert self._zygote is not None
        self._gpu = self._first_gpu if problem.device == "cuda" else None
        self._end([ward for ward in (self._eager, self._compiled) if ward is not None])
        if self._standby is not None:
            self._standby.drop()
        self._eager = self._compiled = self._problem = None
        self._asked_compiled = False
        self._eager = self._fork_baseline("eager")
        self._standby = Standby(self._zygote, self._root, self._candidate_spec)
        options = {
            "max_calls": self._settings.max_calls,
            "plan": asdict(self._settings.plan),
            "ceilings_file": str(default_cache()),
        }
        order = {"op": "open", "problem": asdict(problem), "options": options, "pid": self._eager.pid}
        self._channel.send(order, (self._eager.channel.fileno(),))
        self._eager.channel.close()

    def _try_candidate(self, scratch: Path, thorough: bool, stages: Stages) -> Message:
        assert self._standby is not None
        assert self._channel is not None
        settings = self._settings
        timeout_s = settings.thorough_timeout_s if thorough else settings.timeout_s
        wards: list[Ward] = []
        try:
            wards.append(self._standby.take(scratch))
            ours = []
            if thorough and settings.compile_mode and not self._asked_compiled:
                self._asked_compiled = True
                self._coming = self._fork_baseline("compiled")
                ours.append(self._coming)
            order = {
                "op": "judge",
                "fds": 1 + len(ours),
                "pids": [ward.pid for ward in (*wards, *ours)],
                "scratch": str(scratch),
                "plan": asdict(settings.plan_of(thorough)),
                "thorough": thorough,
            }
            self._channel.send(order, tuple(ward.channel.fileno() for ward in (*wards, *ours)))
            for ward in (*wards, *ours):
                ward.channel.close()
            return self._await(wards[0], timeout_s, scratch, stages)
        except (ChannelClosed, ChannelTimeout) as error:
            self.close()
            raise WorkerBroken(f"the referee, the zygote or a runner of ours died: {error}") from error
        finally:
            stages.enter("ending")
            self._end(wards)

    def _require_recovery(self, verdict: Message, thorough: bool) -> None:
        """Raises WorkerBroken where the baseline is as slow without the kernel that is said to slow it."""
        assert self._channel is not None
        plan = self._settings.plan_of(thorough)
        order = {"op": "recheck", "before_ms": verdict["before_ms"], "plan": asdict(plan)}
        try:
            self._channel.send(order)
            slow = self._await(self._eager_ward(), self._settings.timeout_s)["slow"]
        except ChannelClosed as error:
            self.close()
            raise WorkerBroken("the referee or the zygote died") from error
        if slow:
            raise WorkerBroken(
                "the baseline is slower now than before without any kernel: the machine is busy"
            )

    def _end(self, wards: list[Ward]) -> None:
        """Raises WorkerBroken when a runner cannot be ended."""
        if self._zygote is None:
            for ward in wards:
                ward.close()
            return
        try:
            for ward in wards:
                self._zygote.end(ward)
        except (ChannelClosed, ChannelTimeout) as error:
            self.close()
            raise WorkerBroken(f"a runner could not be ended: {error}") from error

    def _await(
        self, ward: Ward, timeout_s: float, scratch: Path | None = None, stages: Stages | None = None
    ) -> Message:
        """The referee's answer while watching the runner: its death, the deadline, its memory, disk and
        processes. Raises WorkerBroken or ChannelClosed when something else died."""
        assert self._zygote is not None
        assert self._channel is not None
        deadline = time.monotonic() + timeout_s
        killed: Message | None = None
        while True:
            ready, _, _ = select.select(
                [self._channel.fileno(), self._zygote.channel.fileno()], [], [], WATCH_S
            )
            self._zygote.pump(self._zygote.channel.fileno() in ready)
            if self._channel.fileno() in ready or self._channel.has_message():
                answer = self._channel.receive()
                if answer["op"] == "stage" and stages is not None:
                    stages.enter(answer["stage"])
                    self._tend_standby(answer["stage"])
                    continue
                if answer["op"] == "compiled":
                    self._take_compiled(bool(answer["runs"]))
                    continue
                if answer["op"] == "lost":
                    return killed or self._obituary(ward)
                if answer["op"] == "failed":
                    self._fail(str(answer.get("error")))
                return answer
            if killed is None:
                ward.trim_output()
                self._require_baselines()
                killed = self._overstep(ward, deadline, timeout_s, scratch)
                if killed:
                    self._zygote.channel.send({"op": "kill", "pid": ward.pid})
                    deadline = time.monotonic() + 30
            elif time.monotonic() > deadline:
                self._fail("the referee did not notice that the runner is gone")

    def _overstep(
        self, ward: Ward, deadline: float, timeout_s: float, scratch: Path | None
    ) -> Message | None:
        if time.monotonic() > deadline:
            return {"status": "timeout", "log": f"no verdict within {timeout_s:g} s\n{ward.output()}"}
        family = [ward.pid, *sandbox.descendants(ward.pid)]
        if len(family) > MAX_PROCESSES:
            return {"status": "crashed", "log": f"it started more than {MAX_PROCESSES} processes"}
        if sandbox.memory_bytes(family) > self._settings.memory_gb * 2**30 + self._arena_bytes():
            return {
                "status": "crashed",
                "log": f"it used more than {self._settings.memory_gb:g} GB of memory",
            }
        most_bytes = int(self._settings.scratch_gb * 2**30)
        if scratch is not None and (excess := too_much_written(scratch, most_bytes)):
            return {"status": "crashed", "log": f"it {excess}"}
        return None

    def _obituary(self, ward: Ward) -> Message:
        assert self._zygote is not None
        with contextlib.suppress(ChannelClosed):
            deadline = time.monotonic() + 5
            self._zygote.pump(readable=False)
            while ward.exit_code is None and time.monotonic() < deadline:
                self._require_baselines()
                self._zygote.pump(bool(select.select([self._zygote.channel.fileno()], [], [], WATCH_S)[0]))
        self._require_baselines()
        if ward.exit_code == -signal.SIGTRAP and self._forbids_libraries():
            reason = (
                "it called a library (cuBLAS, cuDNN, …): this problem's kernels must do the work themselves"
            )
            return {"status": "rejected", "rule": "library", "log": reason}
        if ward.exit_code is None:
            how = "it closed its channel to the evaluator"
        elif ward.exit_code < 0:
            how = f"it died of {_signal_name(-ward.exit_code)}"
        else:
            how = f"it exited with status {ward.exit_code}"
        return {"status": "crashed", "log": f"{how}\n{ward.output()}".strip()}

    def _tend_standby(self, stage: str) -> None:
        assert self._standby is not None
        if stage == "checking":
            self._standby.start()
        elif stage == "timing":
            self._standby.stop()

    def _candidate_spec(self, scratch: Path) -> dict[str, Any]:
        assert self._problem is not None
        settings = self._settings
        return self._spec(
            scratch,
            role="candidate",
            cpu_s=int(max(settings.timeout_s, settings.thorough_timeout_s)) * 64,
            environment=build_environment(self._facts.get("architecture", "")),
            libraries=self._problem.libraries,
        )

    def _fork_baseline(self, role: str) -> Ward:
        assert self._zygote is not None
        scratch = self._root / f"{role}-{os.getpid()}"
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec = self._spec(
            scratch, role=role, cpu_s=10**7, environment={}, compile_mode=self._settings.compile_mode
        )
        return self._zygote.fork(spec)

    @cached_property
    def _first_gpu(self) -> Gpu:
        return first_gpu(self._environment)

    def _spec(self, scratch: Path, *, environment: dict[str, str], **more: Any) -> dict[str, Any]:
        """Of a runner that may use the problem's device, and no other."""
        gpu = self._gpu
        if gpu is None:
            return runner_spec(scratch, environment=environment, **more)
        return runner_spec(scratch, environment=environment | gpu.variables, devices=gpu.files, **more)

    def _take_compiled(self, runs: bool) -> None:
        """Keeps the `torch.compile` baseline, or ends it where it cannot run the reference."""
        ward, self._coming = self._coming, None
        if runs:
            self._compiled = ward
        elif ward is not None:
            self._end([ward])

    def _eager_ward(self) -> Ward:
        assert self._eager is not None
        return self._eager

    def _forbids_libraries(self) -> bool:
        return self._problem is not None and self._problem.libraries == "no_library"

    def _arena_bytes(self) -> int:
        return int(self._facts.get("arena_bytes", 0))

    def _require_baselines(self) -> None:
        """Raises WorkerBroken when a process of ours died."""
        for name, ward in (("eager", self._eager), ("torch.compile", self._compiled)):
            if ward is not None and ward.exit_code is not None:
                self._fail(f"the {name} baseline died with status {ward.exit_code}: {ward.output()}")

    def _fail(self, reason: str) -> None:
        self.close()
        raise WorkerBroken(reason)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal


class Stages:
    """Where the time of a measurement goes."""

    def __init__(self, on_stage: Callable[[str], None] | None) -> None:
        self._on_stage = on_stage
        self._seconds: dict[str, float] = {}
        self._stage, self._since = "starting", time.monotonic()

    def enter(self, stage: str) -> None:
        """The stage before ends here."""
        now = time.monotonic()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now
        if self._on_stage is not None:
            self._on_stage(stage)

    def seconds(self) -> dict[str, float]:
        """Of each stage that was entered, up to now."""
        return self._seconds | {
            self._stage: self._seconds.get(self._stage, 0.0) + time.monotonic() - self._since
        }


def _evaluation(verdict: Message, environment: dict[str, str], stages_s: dict[str, float]) -> Evaluation:
    timing, correctness = verdict.get("timing"), verdict.get("correctness")
    roofline = verdict.get("roofline")
    return Evaluation(
        status=Status(verdict["status"]),
        timing=Timing.from_json(timing) if timing else None,
        correctness=Correctness(**correctness) if correctness else None,
        log=verdict.get("log", ""),
        rule=verdict.get("rule", ""),
        environment=environment,
        device_s=sum(stages_s.values()),
        stages_s=stages_s,
        roofline=Roofline(**roofline) if roofline else None,
        own_share=verdict.get("own_share"),
    )
