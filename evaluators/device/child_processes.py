"""The processes of a device's evaluator: the judge process and the fork server, which are permanent, and a
problem's runners."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.build.builder import build_environment, runner_spec
from evaluators.isolation import confinement
from evaluators.records.opening import Opening
from evaluators.records.problem import Problem
from evaluators.runner.fork_server import ChildProcess, ForkServer, Output, start_module
from evaluators.runner.prefork import CONFINED_S, Prefork
from evaluators.system import machine_memory, process_tree
from evaluators.system.channel import ChannelClosed, Message
from evaluators.system.cuda_driver import Gpu

GONE_S = 1.0
"""Time for a process to end whose channel is closed."""
SMALL_SHARE = 0.03
"""Share of the device's memory up to which a problem may stay open while others are in use."""
PROCESSES_BYTES = 2**30
"""Approximate memory of a problem's runners, each of which has a context on the GPU."""
NOT_COMPILED = {"TORCH_COMPILE_DISABLE": "1"}
"""For the judge process and eager's runner, where a reference that uses `torch.compile` runs without it: it
would be compiled anew for every dtype and distribution, which takes minutes, and be no eager baseline."""
RUNNER_CORES = 4
"""For the runners of a GPU, which launch kernels. A runner that uses all its cores then starves neither the
builds nor the measurement on another GPU."""
CPU_VARIABLES = {
    "OMP_WAIT_POLICY": "active",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
"""For runners on a CPU. Freed memory stays with the process: otherwise the page faults of large outputs would
cost more than many kernels, and differ between two processes that do the same. OpenMP's threads spin between
calls (while the process is stopped), because waking one takes up to 15 ms on a virtual machine."""


class WorkerBroken(Exception):
    """One of the evaluator's own processes failed, so there is no verdict on the kernel. Start a new worker
    or try again."""


class UnfitProblem(WorkerBroken):
    """The reference does not run or cannot judge a kernel, on any device and in every attempt."""


class UnansweredProblem(UnfitProblem):
    """The reference takes so long that no other case of the problem is tried."""


class DeviceProcesses:
    """The judge process and the fork server. Both have imported torch and serve one problem after another."""

    def __init__(self, environment: Mapping[str, str], device: str) -> None:
        """Starts them with these variables, for problems on this kind of `device`. Raises ChannelClosed or
        OSError."""
        self.device = device
        self.isolation = ""
        """The isolation level of every runner here, once it is known."""
        self._preforks: dict[str, Prefork] = {}
        # If the judge process's threads kept spinning after their work, they would disturb the next block.
        quiet = dict(environment) | {"OMP_WAIT_POLICY": "passive"} | NOT_COMPILED
        self.errors = Output()
        """The judge process's standard error; its warnings come over the channel."""
        self._judge, self.judge = start_module("evaluators.judge.judge_process", quiet, errors=self.errors)
        self.judge_pid = self._judge.pid
        try:
            self.fork_server = ForkServer.start(dict(environment))  # both import torch concurrently
        except (ChannelClosed, OSError):
            self._end_judge()
            raise

    def prefork(self, root: Path, specs: RunnerSpecs) -> Prefork:
        """One for all problems with the same policy on libraries, because nothing else about a candidate's
        runner depends on the problem. A waiting runner serves the next candidate, or the same one on its next
        case."""
        policy = specs.problem.libraries
        if policy not in self._preforks:
            self._preforks[policy] = Prefork(self.fork_server, root, specs.candidate)
        return self._preforks[policy]

    def close(self) -> None:
        """Ends both, and every runner."""
        self.fork_server.close()
        self._end_judge()

    def says_killed(self) -> str:
        """A line about the judge process, if the system has killed it; "" otherwise."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._judge.wait(GONE_S) == -signal.SIGKILL:
                return f"the system has killed the judge process; {machine_memory.words()} now"
        return ""

    def _end_judge(self) -> None:
        self.judge.close()
        process_tree.kill_tree(self._judge.pid)
        self._judge.wait()
        self.errors.close()


@dataclass(frozen=True, kw_only=True)
class RunnerSpecs:
    """The specifications of a problem's runners. `gpu` is the only GPU that they may use."""

    problem: Problem
    gpu: Gpu | None
    cpu_s: int
    compile_mode: str

    def candidate(self, scratch: Path) -> dict[str, Any]:
        """The specification of any candidate's runner."""
        architecture = self.gpu.architecture if self.gpu is not None else ""
        return self._spec(
            scratch,
            role="candidate",
            poisons=self.gpu is None,
            cpu_s=self.cpu_s,
            environment=build_environment(architecture),
            libraries=self.problem.libraries,
            cores=self._cores(),
        )

    def baseline(self, scratch: Path, role: str) -> dict[str, Any]:
        """The specification of a baseline's runner. `role`: `eager` or `compiled`."""
        return self._spec(
            scratch,
            role=role,
            cpu_s=10**7,
            environment=NOT_COMPILED if role == "eager" else {},
            compile_mode=self.compile_mode,
            cores=self._cores() if role == "eager" else [],  # `compiled` compiles, on all cores
        )

    def _cores(self) -> list[int]:
        return runner_cores(self.gpu.number) if self.gpu is not None else []

    def _spec(self, scratch: Path, *, environment: dict[str, str], **more: Any) -> dict[str, Any]:
        if self.gpu is None:
            return runner_spec(scratch, environment=environment, **more)
        environment = environment | self.gpu.variables
        return runner_spec(scratch, environment=environment, devices=self.gpu.files, **more)


def runner_cores(number: int) -> list[int]:
    """The cores for the runners of this GPU: at most half of those that this process may use, and different
    ones from the next GPUs' if there are enough."""
    allowed = sorted(os.sched_getaffinity(0))
    share = max(1, min(RUNNER_CORES, len(allowed) // 2))
    start = number % (len(allowed) // share) * share
    return allowed[start : start + share]


def thread_variables(device: str, threads: int | None) -> dict[str, str]:
    """Environment variables that set the number of threads of a device's processes (see `Settings.threads`),
    and what they do between calls."""
    if device == "cpu":
        return CPU_VARIABLES | ({"OMP_NUM_THREADS": str(threads)} if threads is not None else {})
    # As many as they have cores. They do not spin, because no timed work waits for them.
    return {"OMP_NUM_THREADS": str(threads or len(runner_cores(0)))}


class ProblemProcesses:
    """The runners of one problem: its baselines, and the one that waits for the next candidate."""

    def __init__(self, device_processes: DeviceProcesses, root: Path, specs: RunnerSpecs) -> None:
        """Forks the eager baseline if the problem is timed. Scratch folders are in `root`. Raises
        ChannelClosed or OSError."""
        self._device_processes = device_processes
        self.judge, self.fork_server = device_processes.judge, device_processes.fork_server
        self.judge_pid = device_processes.judge_pid
        self._errors = device_processes.errors
        self._root, self._specs = root, specs
        self.problem = specs.problem
        self.facts: dict[str, str] = {}
        """Facts of device and software, once the judge process has opened the problem."""
        self.opening = Opening(problem=specs.problem.name, seconds={})
        """How long opening it took."""
        self.prefork = device_processes.prefork(root, specs)
        self.eager = self._fork("eager") if specs.problem.timed else None
        self._compiled: ChildProcess | None = None
        self._coming: ChildProcess | None = None
        self._asked_compiled = False

    def hand_over(self, order: Message, children: Sequence[ChildProcess]) -> None:
        """Sends the judge process an order with runners, whose channels it owns from then on. Raises
        ChannelClosed."""
        fds = tuple(each.channel.fileno() for each in children)
        self.judge.send({**order, "fds": len(fds), "pids": [each.pid for each in children]}, fds)
        for each in children:
            each.channel.close()

    def fork_compiled(self) -> list[ChildProcess]:
        """The `torch.compile` baseline, if it is requested for the first time."""
        if self._asked_compiled or not (self._specs.compile_mode and self.problem.timed):
            return []
        self._asked_compiled = True
        self._coming = self._fork("compiled")
        return [self._coming]

    def keep_compiled(self, runs: bool) -> None:
        """Keeps the `torch.compile` baseline, or ends it if it cannot run the reference. Raises ChannelClosed
        or ChannelTimeout."""
        child, self._coming = self._coming, None
        if runs:
            self._compiled = child
        elif child is not None:
            self.fork_server.end(child)

    def judges(self) -> list[int]:
        """Our processes that a candidate has to wait for: the judge process and the baselines."""
        children = [child for child in (self.eager, self._compiled, self._coming) if child is not None]
        below = (pid for child in children for pid in (child.pid, *process_tree.descendants(child.pid)))
        return [self.judge_pid, *below]

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Stores the facts of device and software that the judge process found. Raises as `isolation`
        does."""
        self.facts = {key: str(value) for key, value in facts.items()}
        self.facts["isolation"] = self.isolation()
        if why := confinement.why_missing(self.facts["isolation"]):
            self.facts["isolation_missing"] = why

    def isolation(self) -> str:
        """The isolation level of the baseline's runner, or of any runner if there is no baseline. Raises
        ChannelClosed, ChannelTimeout or OSError."""
        known = self._device_processes
        if self.facts.get("isolation"):
            known.isolation = self.facts["isolation"]
        elif not known.isolation:
            child = self._fork("eager")
            try:
                child.channel.wait(CONFINED_S)
                known.isolation = str(child.channel.receive().get("isolation", ""))
            finally:
                self.fork_server.end(child)
        return known.isolation

    def trim_output(self) -> None:
        """Frees the memory of what our processes have written so far, if it is much."""
        runners = [child.output for child in (self.eager, self._compiled) if child is not None]
        for output in (self._errors, *runners):
            output.trim()

    def dead_baseline(self) -> str:
        """A message about a baseline that died; "" if none did."""
        for name, child in (("eager", self.eager), ("torch.compile", self._compiled)):
            if child is not None and child.exit_code is not None:
                return f"the {name} baseline died with status {child.exit_code}: {child.output.end()}"
        return ""

    @property
    def is_small(self) -> bool:
        """Whether the open problem uses so little memory that it may stay open while others are in use."""
        return self._held_bytes <= SMALL_SHARE * self._memory_bytes

    @property
    def memory_share(self) -> float:
        """Share of the device's memory that the open problem and its processes use."""
        return (self._held_bytes + PROCESSES_BYTES) / self._memory_bytes

    @property
    def _held_bytes(self) -> int:
        return 3 * int(self.facts.get("buffer_bytes", 0)) + int(self.facts.get("baseline_bytes", 0))

    @property
    def _memory_bytes(self) -> int:
        return int(self.facts.get("total_memory") or machine_memory.total_bytes())

    def close(self) -> None:
        """Ends its baselines and notifies the judge process. The waiting runner ends too if memory is scarce.
        Raises ChannelClosed or ChannelTimeout."""
        if not self.is_small:
            self.prefork.drop()
        for child in (self.eager, self._compiled):
            if child is not None:
                self.fork_server.end(child)
        self.judge.send({"op": "close", "session": self.problem.id})

    def _fork(self, role: str) -> ChildProcess:
        scratch = self._root / f"{role}-{os.getpid()}-{self.problem.id}"
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.fork_server.fork(self._specs.baseline(scratch, role))
