"""The processes of a device's evaluator: the judge process and the fork server, which last, and a problem's
runners."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.build.builder import build_environment, runner_spec
from evaluators.records.opening import Opening
from evaluators.records.problem import Problem
from evaluators.runner.fork_server import ChildProcess, ForkServer, Output, start_module
from evaluators.runner.prefork import CONFINED_S, Prefork
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed, Message
from evaluators.system.cuda_driver import Gpu

SMALL_SHARE = 0.03
"""Of the device's memory, of a problem that may stay open while others are in use."""
PROCESSES_BYTES = 2**30
"""Of the runners of a problem, about: each has a context on the GPU."""
RUNNER_CORES = 4
"""For the runners of a GPU, which launch kernels: one that takes all that it gets starves neither the builds
nor the measurement on another GPU."""
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


class UnfitProblem(WorkerBroken):
    """The reference does not run, or cannot judge a kernel: so it is on every device, however often it is
    opened."""


class UnansweredProblem(UnfitProblem):
    """The reference gives no answer for so long that other cases of the problem are not tried."""


class DeviceProcesses:
    """The judge process and the fork server; both have imported torch and go from problem to problem."""

    def __init__(self, environment: Mapping[str, str], device: str) -> None:
        """Starts them with these variables, for problems on such a `device`. Raises ChannelClosed or
        OSError."""
        self.device = device
        self.isolation = ""
        """Which every runner reaches here, once that is known."""
        self._preforks: dict[str, Prefork] = {}
        # The judge process's threads that spin after work of their own would disturb the block that follows.
        quiet = dict(environment) | {"OMP_WAIT_POLICY": "passive"}
        self.errors = Output()
        """What the judge process writes to standard error: its warnings come by the channel."""
        self._judge, self.judge = start_module("evaluators.judge.judge_process", quiet, errors=self.errors)
        self.judge_pid = self._judge.pid
        try:
            self.fork_server = ForkServer.start(dict(environment))  # both import torch: side by side
        except (ChannelClosed, OSError):
            self._end_judge()
            raise

    def prefork(self, root: Path, specs: RunnerSpecs) -> Prefork:
        """Of all problems with this one's policy on libraries, on which nothing else of a candidate's runner
        depends: so one that waits is for the next candidate, or for the same on the next case."""
        policy = specs.problem.libraries
        if policy not in self._preforks:
            self._preforks[policy] = Prefork(self.fork_server, root, specs.candidate)
        return self._preforks[policy]

    def close(self) -> None:
        """Ends them, and every runner."""
        self.fork_server.close()
        self._end_judge()

    def _end_judge(self) -> None:
        self.judge.close()
        process_tree.kill_tree(self._judge.pid)
        self._judge.wait()
        self.errors.close()


@dataclass(frozen=True, kw_only=True)
class RunnerSpecs:
    """What runners for a problem are forked with. `gpu`: the one that they may use, and no other."""

    problem: Problem
    gpu: Gpu | None
    cpu_s: int
    compile_mode: str

    def candidate(self, scratch: Path) -> dict[str, Any]:
        """For any candidate."""
        architecture = self.gpu.architecture if self.gpu is not None else ""
        return self._spec(
            scratch,
            role="candidate",
            cpu_s=self.cpu_s,
            environment=build_environment(architecture),
            libraries=self.problem.libraries,
            cores=self._cores(),
        )

    def baseline(self, scratch: Path, role: str) -> dict[str, Any]:
        """`role`: `eager` or `compiled`."""
        return self._spec(
            scratch,
            role=role,
            cpu_s=10**7,
            environment={},
            compile_mode=self.compile_mode,
            cores=self._cores() if role == "eager" else [],  # the other one compiles, on all of them
        )

    def _cores(self) -> list[int]:
        return runner_cores(self.gpu.number) if self.gpu is not None else []

    def _spec(self, scratch: Path, *, environment: dict[str, str], **more: Any) -> dict[str, Any]:
        if self.gpu is None:
            return runner_spec(scratch, environment=environment, **more)
        environment = environment | self.gpu.variables
        return runner_spec(scratch, environment=environment, devices=self.gpu.files, **more)


def runner_cores(number: int) -> list[int]:
    """The cores for the runners of the GPU with this number: no more than half of those that this process may
    use, and other ones than for the next GPUs, as far as there are enough."""
    allowed = sorted(os.sched_getaffinity(0))
    share = max(1, min(RUNNER_CORES, len(allowed) // 2))
    start = number % (len(allowed) // share) * share
    return allowed[start : start + share]


def thread_variables(device: str, threads: int | None) -> dict[str, str]:
    """Of the environment: how many threads the processes for such a device have (see `Settings.threads`), and
    what they do between calls."""
    if device == "cpu":
        return CPU_VARIABLES | ({"OMP_NUM_THREADS": str(threads)} if threads is not None else {})
    # As many as their cores. None of them spins: nothing that is timed waits for them.
    return {"OMP_NUM_THREADS": str(threads or len(runner_cores(0)))}


class ProblemProcesses:
    """The runners of one problem: its baselines, and the one that waits for the next candidate."""

    def __init__(self, device_processes: DeviceProcesses, root: Path, specs: RunnerSpecs) -> None:
        """Forks the eager baseline, where something is timed; scratch folders lie in `root`. Raises
        ChannelClosed or OSError."""
        self._device_processes = device_processes
        self.judge, self.fork_server = device_processes.judge, device_processes.fork_server
        self.judge_pid = device_processes.judge_pid
        self._errors = device_processes.errors
        self._root, self._specs = root, specs
        self.problem = specs.problem
        self.facts: dict[str, str] = {}
        """Of device and software, once the judge process has opened the problem."""
        self.opening = Opening(problem=specs.problem.name, seconds={})
        """How long that took."""
        self.prefork = device_processes.prefork(root, specs)
        self.eager = self._fork("eager") if specs.problem.timed else None
        self._compiled: ChildProcess | None = None
        self._coming: ChildProcess | None = None
        self._asked_compiled = False

    def hand_over(self, order: Message, children: Sequence[ChildProcess]) -> None:
        """Sends the judge process an order with runners, whose channels are its own from then on. Raises
        ChannelClosed."""
        fds = tuple(each.channel.fileno() for each in children)
        self.judge.send({**order, "fds": len(fds), "pids": [each.pid for each in children]}, fds)
        for each in children:
            each.channel.close()

    def fork_compiled(self) -> list[ChildProcess]:
        """The `torch.compile` baseline, when it is asked for the first time."""
        if self._asked_compiled or not (self._specs.compile_mode and self.problem.timed):
            return []
        self._asked_compiled = True
        self._coming = self._fork("compiled")
        return [self._coming]

    def keep_compiled(self, runs: bool) -> None:
        """Keeps the `torch.compile` baseline, or ends it where it cannot run the reference. Raises
        ChannelClosed or ChannelTimeout."""
        child, self._coming = self._coming, None
        if runs:
            self._compiled = child
        elif child is not None:
            self.fork_server.end(child)

    def judges(self) -> list[int]:
        """The processes of ours that a candidate has to wait for: the judge process and the baselines."""
        children = [child for child in (self.eager, self._compiled, self._coming) if child is not None]
        below = (pid for child in children for pid in (child.pid, *process_tree.descendants(child.pid)))
        return [self.judge_pid, *below]

    def know(self, facts: Mapping[str, Any]) -> None:
        """Of device and software, as the judge process has found them. Raises as `isolation` does."""
        self.facts = {key: str(value) for key, value in facts.items()}
        self.facts["isolation"] = self.isolation()

    def isolation(self) -> str:
        """Which runners reach here: the baseline's, or where there is none, of any. Raises ChannelClosed,
        ChannelTimeout or OSError."""
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
        """Frees the memory of what the processes of ours have written so far, where that is much."""
        runners = [child.output for child in (self.eager, self._compiled) if child is not None]
        for output in (self._errors, *runners):
            output.trim()

    def dead_baseline(self) -> str:
        """What is to be said of one that died; "" where none did."""
        for name, child in (("eager", self.eager), ("torch.compile", self._compiled)):
            if child is not None and child.exit_code is not None:
                return f"the {name} baseline died with status {child.exit_code}: {child.output.end()}"
        return ""

    @property
    def is_small(self) -> bool:
        """Whether the problem holds so little memory, where it is open, that it may stay so beside others."""
        return self._held_bytes <= SMALL_SHARE * self._memory_bytes

    @property
    def memory_share(self) -> float:
        """Of the device's memory, that the problem and its processes hold, where it is open."""
        return (self._held_bytes + PROCESSES_BYTES) / self._memory_bytes

    @property
    def _held_bytes(self) -> int:
        return 3 * int(self.facts.get("buffer_bytes", 0)) + int(self.facts.get("baseline_bytes", 0))

    @property
    def _memory_bytes(self) -> int:
        machines_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return int(self.facts.get("total_memory", machines_bytes))

    def close(self) -> None:
        """Ends its baselines, and tells the judge process. The runner that waits ends where memory is scarce.
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
