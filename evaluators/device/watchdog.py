"""Waits for the judge process's answers, and meanwhile checks that the runner is alive, in time and within
its limits."""

from __future__ import annotations

import contextlib
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from evaluators.device.child_processes import ProblemProcesses, WorkerBroken
from evaluators.isolation.scratch import too_much_written
from evaluators.records.evaluation import Stage, Status, summed_stages
from evaluators.records.verdict import Verdict
from evaluators.runner.fork_server import ChildProcess
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed, Message
from evaluators.system.deadline import Deadline

WATCH_S = 0.05
MAX_PROCESSES = 256
GONE_S = 30.0
"""How long the judge process may take to notice that a runner was killed."""
REPORTED = (Stage.LOADING, Stage.CHECKING, Stage.COUNTING, Stage.TIMING)
"""The stages whose beginning the judge process reports."""


class Unresponsive(WorkerBroken):
    """The judge process is busy, usually with a reference that it is opening: it does not answer in time, or
    does not notice that a runner is gone."""


class Stages:
    """Records how long each stage of a measurement takes."""

    def __init__(self, on_stage: Callable[[str], None] | None) -> None:
        self._on_stage = on_stage
        self._seconds: dict[Stage, float] = {}
        self._judged: dict[str, float] = {}
        """What the judge process has timed itself."""
        self._stage, self._since = Stage.STARTING, time.monotonic()

    def was(self, stage: Stage) -> None:
        """Counts the time since the last stage began as this one, and continues the last one."""
        now = time.monotonic()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def enter(self, stage: Stage) -> None:
        """Ends the current stage and begins this one."""
        now = time.monotonic()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now
        if self._on_stage is not None:
            self._on_stage(stage.value)

    def refine(self, judged: Mapping[str, float]) -> None:
        """Replaces the stages that the judge process has reported since the last call by its own, finer
        account. The time that this does not cover, between the processes, is part of STARTING."""
        if not judged:
            return
        self.was(self._stage)
        seen_s = sum(self._seconds.pop(stage, 0.0) for stage in REPORTED)
        between_s = max(seen_s - sum(judged.values()), -self._seconds.get(Stage.STARTING, 0.0))
        self._seconds[Stage.STARTING] = self._seconds.get(Stage.STARTING, 0.0) + between_s
        self._judged = summed_stages([self._judged, judged])

    def seconds(self) -> dict[str, float]:
        """The duration so far of each stage that was entered."""
        self.was(self._stage)
        own = {stage.value: seconds for stage, seconds in self._seconds.items()}
        found = summed_stages([own, self._judged])
        return {stage.value: found[stage.value] for stage in Stage if stage.value in found}


class Watchdog:
    """Watches one order to the judge process, with a runner's limits."""

    def __init__(
        self,
        processes: ProblemProcesses,
        *,
        timeout_s: float,
        memory_bytes: int,
        scratch_bytes: int,
        warn: Callable[[str], None],
    ) -> None:
        """`warn` receives the judge process's warnings."""
        self._processes, self._warn = processes, warn
        self._memory_bytes, self._scratch_bytes = memory_bytes, scratch_bytes
        self._deadline = Deadline(timeout_s)

    def answer(
        self, child: ChildProcess | None, scratch: Path | None = None, stages: Stages | None = None
    ) -> Message | Verdict:
        """The judge process's answer, or a verdict if the runner that it waits for ended. Raises
        WorkerBroken, ChannelClosed or ChannelTimeout if anything else died."""
        judge = self._processes.judge
        noticing: Deadline | None = None
        killed: Verdict | None = None
        while True:
            if judge.has_message() or self._wait(judge.fileno()):
                message = judge.receive()
                if message["op"] == "lost" and child is not None:
                    return killed or self._obituary(child)
                if not self._is_a_notice(message, stages):
                    return message
            elif noticing is None:
                self._processes.trim_output()
                self._require_baselines()
                if child is None:
                    if self._is_over([]):
                        raise Unresponsive(f"no answer {self._deadline.reason}")
                    continue
                child.output.trim()
                family = [child.pid, *process_tree.descendants(child.pid)]
                killed = self._late(child, family) or self._overstep(family, scratch)
                if killed:
                    self._processes.fork_server.channel.send({"op": "kill", "pid": child.pid})
                    noticing = Deadline(GONE_S)
            elif killed and noticing.is_over([], [self._processes.judge_pid]):
                raise Unresponsive(f"the judge process did not notice that the runner is gone: {killed.log}")

    def baseline_answer(self) -> Message:
        """The judge process's answer to an order about the baseline. Raises as `answer` does, and
        WorkerBroken if the baseline did not finish."""
        answer = self.answer(self._processes.eager)
        if isinstance(answer, Verdict):
            raise WorkerBroken(f"the baseline did not finish: {answer.log}")
        return answer

    def _wait(self, *others: int) -> bool:
        """Serves the fork server until one of the other descriptors is readable, for at most WATCH_S. Returns
        whether one is."""
        fork_server = self._processes.fork_server
        own = fork_server.channel.fileno()
        ready, _, _ = select.select([own, *others], [], [], WATCH_S)
        fork_server.pump(own in ready)
        return any(each in ready for each in others)

    def _is_a_notice(self, message: Message, stages: Stages | None) -> bool:
        """Handles a message of the judge process that is not an answer; returns whether it was one. Raises
        WorkerBroken if the process has failed."""
        match message["op"]:
            case "stage" if stages is not None:
                stage = Stage(message["stage"])
                stages.enter(stage)
                self._tend_prefork(stage)
            case "warning":
                self._warn(message["text"])
            case "compiled":
                self._processes.keep_compiled(bool(message["runs"]))
            case "failed":
                raise WorkerBroken(str(message.get("error")))
            case _:
                return False
        return True

    def _tend_prefork(self, stage: Stage) -> None:
        if stage is Stage.CHECKING:
            self._processes.prefork.start()
        elif stage is Stage.TIMING:
            self._processes.prefork.stop()

    def _is_over(self, family: list[int]) -> bool:
        # On a CPU a measurement waits for a core at each wake-up; on a GPU it occupies the device meanwhile.
        on_cpu = self._processes.problem.device == "cpu"
        return self._deadline.is_over(*(family, self._processes.judges()) if on_cpu else ([], []))

    def _late(self, child: ChildProcess, family: list[int]) -> Verdict | None:
        if not self._is_over(family):
            return None
        log = f"no verdict {self._deadline.reason}\n{child.output.end()}".strip()
        return Verdict(status=Status.TIMEOUT, log=log)

    def _overstep(self, family: list[int], scratch: Path | None) -> Verdict | None:
        if len(family) > MAX_PROCESSES:
            return Verdict(status=Status.CRASHED, log=f"it started more than {MAX_PROCESSES} processes")
        buffer_bytes = int(self._processes.facts.get("buffer_bytes", 0))
        if process_tree.memory_bytes(family) > self._memory_bytes + buffer_bytes:
            most_gb = self._memory_bytes / 2**30
            return Verdict(status=Status.CRASHED, log=f"it used more than {most_gb:g} GB of memory")
        if scratch is not None and (excess := too_much_written(scratch, self._scratch_bytes)):
            return Verdict(status=Status.CRASHED, log=f"it {excess}")
        return None

    def _obituary(self, child: ChildProcess) -> Verdict:
        with contextlib.suppress(ChannelClosed):
            deadline = time.monotonic() + 5
            self._processes.fork_server.pump(readable=False)
            while child.exit_code is None and time.monotonic() < deadline:
                self._require_baselines()
                self._wait()
        self._require_baselines()
        if child.exit_code == -signal.SIGTRAP and self._processes.problem.libraries == "no_library":
            reason = (
                "it called a library (cuBLAS, cuDNN, …); this problem's kernels must do the work themselves"
            )
            return Verdict(status=Status.REJECTED, rule="library", log=reason)
        if child.exit_code is None:
            how = "it closed its channel to the evaluator"
        elif child.exit_code < 0:
            how = f"it died of {_signal_name(-child.exit_code)}"
        else:
            how = f"it exited with status {child.exit_code}"
        return Verdict(status=Status.CRASHED, log=f"{how}\n{child.output.end()}".strip())

    def _require_baselines(self) -> None:
        if died := self._processes.dead_baseline():
            raise WorkerBroken(died)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal
