"""Waits for the referee's answers and watches a runner meanwhile: is it alive, in time, within its limits?"""

from __future__ import annotations

import contextlib
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from evaluators.device.child_processes import Case, WorkerBroken
from evaluators.isolation.scratch import too_much_written
from evaluators.runner.fork_server import Ward
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed, Message
from evaluators.system.deadline import Deadline

WATCH_S = 0.05
MAX_PROCESSES = 256
GONE_S = 30.0
"""How long the referee may take to notice that a runner was killed."""


class Deaf(WorkerBroken):
    """The referee takes no notice of a runner that is gone: it is busy, at an opening with the reference."""


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


class Watch:
    """Over one order to the referee, with a runner's limits."""

    def __init__(
        self,
        case: Case,
        *,
        timeout_s: float,
        memory_bytes: int,
        scratch_bytes: int,
        warn: Callable[[str], None],
    ) -> None:
        """`warn` is told of the referee's warnings."""
        self._case, self._warn = case, warn
        self._memory_bytes, self._scratch_bytes = memory_bytes, scratch_bytes
        self._deadline = Deadline(timeout_s)

    def answer(self, ward: Ward, scratch: Path | None = None, stages: Stages | None = None) -> Message:
        """The referee's, or what became of the runner. Raises WorkerBroken, ChannelClosed or ChannelTimeout
        when something else died."""
        referee, zygote = self._case.referee, self._case.zygote
        noticing: Deadline | None = None
        killed: Message | None = None
        while True:
            ready, _, _ = select.select([referee.fileno(), zygote.channel.fileno()], [], [], WATCH_S)
            zygote.pump(zygote.channel.fileno() in ready)
            if referee.fileno() in ready or referee.has_message():
                answer = referee.receive()
                if answer["op"] == "stage" and stages is not None:
                    stages.enter(answer["stage"])
                    self._tend_standby(answer["stage"])
                    continue
                if answer["op"] == "warning":
                    self._warn(answer["text"])
                    continue
                if answer["op"] == "compiled":
                    self._case.keep_compiled(bool(answer["runs"]))
                    continue
                if answer["op"] == "lost":
                    return killed or self._obituary(ward)
                if answer["op"] == "failed":
                    raise WorkerBroken(str(answer.get("error")))
                return answer
            if killed is None:
                ward.output.trim()
                self._case.trim_output()
                self._require_baselines()
                family = [ward.pid, *process_tree.descendants(ward.pid)]
                killed = self._late(ward, family) or self._overstep(family, scratch)
                if killed:
                    zygote.channel.send({"op": "kill", "pid": ward.pid})
                    noticing = Deadline(GONE_S)
            elif noticing is not None and noticing.is_over([], [self._case.referee_pid]):
                raise Deaf(f"the referee did not notice that the runner is gone: {killed['log']}")

    def _tend_standby(self, stage: str) -> None:
        if stage == "checking":
            self._case.standby.start()
        elif stage == "timing":
            self._case.standby.stop()

    def _late(self, ward: Ward, family: list[int]) -> Message | None:
        # On a CPU a measurement waits for a core at each wake-up; on a GPU it holds the device meanwhile.
        on_cpu = self._case.problem.device == "cpu"
        if not self._deadline.is_over(*(family, self._case.judges()) if on_cpu else ([], [])):
            return None
        return {
            "status": "timeout",
            "log": f"no verdict {self._deadline.reason}\n{ward.output.end()}".strip(),
        }

    def _overstep(self, family: list[int], scratch: Path | None) -> Message | None:
        if len(family) > MAX_PROCESSES:
            return {"status": "crashed", "log": f"it started more than {MAX_PROCESSES} processes"}
        arena_bytes = int(self._case.facts.get("arena_bytes", 0))
        if process_tree.memory_bytes(family) > self._memory_bytes + arena_bytes:
            most_gb = self._memory_bytes / 2**30
            return {"status": "crashed", "log": f"it used more than {most_gb:g} GB of memory"}
        if scratch is not None and (excess := too_much_written(scratch, self._scratch_bytes)):
            return {"status": "crashed", "log": f"it {excess}"}
        return None

    def _obituary(self, ward: Ward) -> Message:
        zygote = self._case.zygote
        with contextlib.suppress(ChannelClosed):
            deadline = time.monotonic() + 5
            zygote.pump(readable=False)
            while ward.exit_code is None and time.monotonic() < deadline:
                self._require_baselines()
                zygote.pump(bool(select.select([zygote.channel.fileno()], [], [], WATCH_S)[0]))
        self._require_baselines()
        if ward.exit_code == -signal.SIGTRAP and self._case.problem.libraries == "no_library":
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
        return {"status": "crashed", "log": f"{how}\n{ward.output.end()}".strip()}

    def _require_baselines(self) -> None:
        if died := self._case.dead_baseline():
            raise WorkerBroken(died)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal
