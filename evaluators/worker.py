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
from dataclasses import asdict, dataclass, field
from pathlib import Path

from evaluators import sandbox
from evaluators.build import build_environment, runner_spec, scratch_folder
from evaluators.channel import Channel, ChannelClosed, ChannelTimeout, Message
from evaluators.evaluation import Correctness, Evaluation, Status, Timing
from evaluators.problem import Kernel, Problem
from evaluators.timing import Plan
from evaluators.zygote import Ward, Zygote, start_module

logger = logging.getLogger(__name__)

WATCH_S = 0.05
MAX_PROCESSES = 256


class WorkerBroken(Exception):
    """A process of the evaluator's own failed: no verdict on the kernel. Start a new worker, or ask again."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a worker measures. Times in seconds, `block_ms` per block of calls."""

    build_timeout_s: float = 180.0
    timeout_s: float = 60.0
    thorough_timeout_s: float = 300.0
    open_timeout_s: float = 300.0
    memory_gb: float = 16.0
    max_calls: int = 512
    plan: Plan = field(default_factory=lambda: Plan(block_ms=10.0, precision=0.02, max_s=1.0))
    thorough_plan: Plan = field(default_factory=lambda: Plan(block_ms=20.0, precision=0.005, max_s=5.0))
    compile_mode: str = "max-autotune-no-cudagraphs"
    """Mode of the `torch.compile` baseline; "" leaves that baseline out."""
    threads: int | None = None
    """CPU threads of kernels and baselines; None leaves it to them (all cores)."""

    def __post_init__(self) -> None:
        limits = (
            "build_timeout_s",
            "timeout_s",
            "thorough_timeout_s",
            "open_timeout_s",
            "memory_gb",
            "max_calls",
        )
        for name in (*limits, *(["threads"] if self.threads is not None else [])):
            if not getattr(self, name) > 0:
                raise ValueError(f"evaluator.{name} is {getattr(self, name)}; it must be positive")


class Worker:
    """One device's evaluator. Not thread-safe: one measurement at a time."""

    def __init__(self, *, root: Path, settings: Settings, visible_gpu: str = "") -> None:
        """`root`: the folder for scratch folders, the same as the builds'. `visible_gpu`: the value of
        CUDA_VISIBLE_DEVICES for its processes, "" to leave it as it is."""
        self._root, self._settings = root, settings
        self._environment = sandbox.clean_environment()
        if settings.threads is not None:
            self._environment["OMP_NUM_THREADS"] = str(settings.threads)
        if visible_gpu:
            self._environment["CUDA_VISIBLE_DEVICES"] = visible_gpu
        self._referee: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._zygote: Zygote | None = None
        self._baseline: Ward | None = None
        self._problem = ""
        self._facts: dict[str, str] = {}

    def open(self, problem: Problem) -> dict[str, str]:
        """Starts what is not running and opens the problem: reference, baseline, shared memory. Returns
        the facts of device and software. Raises WorkerBroken with the reason."""
        if self._problem == problem.id:
            return self._facts
        self.close()
        try:
            self._start(problem)
            answer = self._await(self._require_baseline(), self._settings.open_timeout_s)
        except (ChannelClosed, OSError) as error:
            self.close()
            raise WorkerBroken(f"the evaluator's own processes did not come up: {error}") from error
        if answer.get("op") != "opened":
            self.close()
            raise WorkerBroken(f"the reference cannot be run:\n{answer.get('error', answer)}")
        self._problem = problem.id
        self._facts = {k: str(v) for k, v in answer.items() if k not in ("op", "eager_ms")}
        return self._facts

    def measure(
        self, problem: Problem, kernel: Kernel, archive: bytes, *, thorough: bool = False
    ) -> Evaluation:
        """Checks and times a built kernel. Raises WorkerBroken when the fault is not the kernel's."""
        facts = self.open(problem)
        start = time.monotonic()
        with scratch_folder(kernel, self._root, archive) as scratch:
            verdict = self._try_candidate(scratch, thorough)
        environment = facts | {"isolation": str(verdict.get("isolation", ""))}
        return _evaluation(verdict, environment, time.monotonic() - start)

    def close(self) -> None:
        """Ends every process."""
        if self._zygote is not None:
            self._zygote.close()
        if self._channel is not None:
            self._channel.close()
        if self._referee is not None:
            sandbox.kill_tree(self._referee.pid)
            self._referee.wait()
        self._zygote = self._channel = self._referee = self._baseline = None
        self._problem = ""

    def _start(self, problem: Problem) -> None:
        self._zygote = Zygote(self._environment)
        self._referee, self._channel = start_module("evaluators.referee", self._environment)
        self._baseline = self._fork_baseline("eager")
        options = {"max_calls": self._settings.max_calls, "plan": asdict(self._settings.plan)}
        order = {"op": "open", "problem": asdict(problem), "options": options}
        self._channel.send(order, (self._baseline.channel.fileno(),))
        self._baseline.channel.close()

    def _try_candidate(self, scratch: Path, thorough: bool) -> Message:
        assert self._zygote is not None
        assert self._channel is not None
        settings = self._settings
        timeout_s = settings.thorough_timeout_s if thorough else settings.timeout_s
        flags = build_environment(self._facts.get("architecture", ""))
        spec = runner_spec(scratch, role="candidate", cpu_s=int(timeout_s) * 64, environment=flags)
        wards: list[Ward] = []
        try:
            wards.append(self._zygote.fork(spec))
            if thorough and settings.compile_mode:
                wards.append(self._fork_baseline("compiled"))
            fds = tuple(ward.channel.fileno() for ward in wards)
            plan = asdict(settings.thorough_plan if thorough else settings.plan)
            self._channel.send({"op": "judge", "fds": len(fds), "plan": plan}, fds)
            for ward in wards:
                ward.channel.close()
            return self._await(wards[0], timeout_s)
        except ChannelClosed as error:
            self.close()
            raise WorkerBroken("the referee or the zygote died") from error
        finally:
            self._end(wards)

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

    def _await(self, ward: Ward, timeout_s: float) -> Message:
        """The referee's answer while watching the runner: its death, the deadline, its memory and number of
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
            if self._channel.fileno() in ready:
                answer = self._channel.receive()
                if answer["op"] == "lost":
                    return killed or self._obituary(ward)
                if answer["op"] == "failed":
                    self._fail(str(answer.get("error")))
                return answer
            if killed is None and not self._baseline_lives():
                self._fail_with_baseline()
            if killed is None and (killed := self._overstep(ward, deadline, timeout_s)):
                self._zygote.channel.send({"op": "kill", "pid": ward.pid})
                deadline = time.monotonic() + 30
            elif killed is not None and time.monotonic() > deadline:
                self._fail("the referee did not notice that the runner is gone")

    def _overstep(self, ward: Ward, deadline: float, timeout_s: float) -> Message | None:
        if time.monotonic() > deadline:
            return {"status": "timeout", "log": f"no verdict within {timeout_s:g} s\n{ward.output()}"}
        family = [ward.pid, *sandbox.descendants(ward.pid)]
        if len(family) > MAX_PROCESSES:
            return {"status": "crashed", "log": f"it started more than {MAX_PROCESSES} processes"}
        if sandbox.resident_bytes(family) > self._settings.memory_gb * 2**30:
            return {
                "status": "crashed",
                "log": f"it used more than {self._settings.memory_gb:g} GB of memory",
            }
        return None

    def _obituary(self, ward: Ward) -> Message:
        assert self._zygote is not None
        with contextlib.suppress(ChannelClosed):
            deadline = time.monotonic() + 5
            self._zygote.pump(readable=False)
            while ward.exit_code is None and self._baseline_lives() and time.monotonic() < deadline:
                self._zygote.pump(bool(select.select([self._zygote.channel.fileno()], [], [], WATCH_S)[0]))
        if not self._baseline_lives():
            self._fail_with_baseline()
        if ward.exit_code is None:
            how = "it closed its channel to the evaluator"
        elif ward.exit_code < 0:
            how = f"it died of {_signal_name(-ward.exit_code)}"
        else:
            how = f"it exited with status {ward.exit_code}"
        return {"status": "crashed", "log": f"{how}\n{ward.output()}".strip()}

    def _fork_baseline(self, role: str) -> Ward:
        assert self._zygote is not None
        scratch = self._root / f"{role}-{os.getpid()}"
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec = runner_spec(
            scratch, role=role, cpu_s=10**7, environment={}, compile_mode=self._settings.compile_mode
        )
        return self._zygote.fork(spec)

    def _require_baseline(self) -> Ward:
        assert self._baseline is not None
        return self._baseline

    def _baseline_lives(self) -> bool:
        return self._require_baseline().exit_code is None

    def _fail_with_baseline(self) -> None:
        baseline = self._require_baseline()
        self._fail(f"the baseline died with status {baseline.exit_code}: {baseline.output()}")

    def _fail(self, reason: str) -> None:
        self.close()
        raise WorkerBroken(reason)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal


def _evaluation(verdict: Message, environment: dict[str, str], seconds: float) -> Evaluation:
    timing, correctness = verdict.get("timing"), verdict.get("correctness")
    return Evaluation(
        status=Status(verdict["status"]),
        timing=Timing.from_json(timing) if timing else None,
        correctness=Correctness(**correctness) if correctness else None,
        log=verdict.get("log", ""),
        rule=verdict.get("rule", ""),
        environment=environment,
        device_s=seconds,
    )
