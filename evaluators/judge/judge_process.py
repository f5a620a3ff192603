"""The trusted process: draws secret inputs, computes the right answers, owns the clock and gives the verdict.

It never has a candidate in its address space. It talks to runners over channels that its parent, the worker,
passes to it, and to the worker:

    -> open {session, problem, ...} + eager runner's channel if the problem is timed; a session is named
       by its problem's id
    <- opened {facts, seconds} | unfit {error, of_memory, intact}: the reference is at fault; this process
       may continue if it is `intact` | failed {...}: something else is at fault
       | asserted: the reference has failed on the device, which this process can no longer use
    -> close {session}, whose runners have ended, or which could not be opened; it has no answer
    -> audit {problem}, while no session is open
    <- audited {audit} | unfit {error} | failed {error}
    -> judge {session, plan, effort, keep, ...} + candidate's channel (+ the compiled baseline's); without
       one, the candidate is the previous one, whose channel was kept
    <- compiled {runs}, stage {stage}, ..., verdict {status, ...}
    <- warning {text}, before any answer
    -> probe {session, plan, marks} + the probe's channel
    <- stage {stage}, ..., probed {probe}
    -> compare {session, plan, effort, pids, ...} + the candidates' channels: see `head_to_head.py`
    <- comparing
    -> next: whose turn is it?
    <- turn {candidate} | verdicts {verdicts: [{status, ...}, ...]}
    -> go: the turn may begin
    <- turned {failed}: whether the candidate drops out, so that its runner must be ended
    -> recheck {session, before_ms, before_calls, baseline_calls}: is the baseline still slow without the
        candidate?
    <- rechecked {slow}

It waits for a runner without a time limit: the worker owns the deadlines and kills the runner, which closes
the channel.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evaluators.base.cause import cause_of
from evaluators.judge import device_memory
from evaluators.judge.candidate_evaluation import CandidateEvaluation
from evaluators.judge.head_to_head import HeadToHead, RoundStep
from evaluators.judge.memory_plan import TooLarge
from evaluators.judge.probe_measurement import ProbeMeasurement
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import CandidateRefused, ready
from evaluators.judge.session_options import SessionOptions
from evaluators.records.evaluation import NOT_HERE, Stage, Status
from evaluators.records.opening import OpeningStep, Steps
from evaluators.records.probe import Probe, TraceMarks
from evaluators.records.problem import Problem
from evaluators.records.timing import Effort, Plan, sabotaged
from evaluators.records.verdict import Verdict
from evaluators.reference.judging_power import audit
from evaluators.reference.loading import USERS_ERRORS, assigned_names
from evaluators.reference.running_reference import UnfitReference
from evaluators.system import process_tree
from evaluators.system.author_facts import cpu_name, toolchain
from evaluators.system.channel import Channel, ChannelClosed, Message

logger = logging.getLogger(__name__)

MACHINES_FAULT = re.compile(
    r"\b(CUDA|cuDNN|CUBLAS|CUFFT) error|CUDNN_STATUS|[Oo]ut ?[Oo]f ?[Mm]emory|AcceleratorError"
)
"""In the cause of an error that may not occur on another device or at another time."""
CALLERS_FAULT = re.compile(r"CUDNN_STATUS_(BAD_PARAM|NOT_SUPPORTED)")
"""In the cause of an error that occurs for this reference on every device."""
COMPILES = re.compile(r"^[^#\n]*\btorch\.compile\b", re.MULTILINE)
"""In a reference that compiles itself."""
ASSERTED = "device-side assert triggered"
"""In the cause of an error of a kernel that refused its inputs, as PyTorch's losses and lookups do."""
DEVICE_FACTS = (
    "multi_processor_count",
    "total_memory",
    "L2_cache_size",
    "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor",
    "regs_per_multiprocessor",
    "max_threads_per_multi_processor",
)
"""torch's names of facts for kernel authors."""


class _ToWorker(logging.Handler):
    """Sends the text of each log record to the worker, which has a console or a log."""

    def __init__(self, worker: Channel) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._worker.send({"op": "warning", "text": record.getMessage()})


def main() -> None:
    """The judge process: serves its worker until the channel closes."""
    process_tree.die_with_parent()
    process_tree.rename("judge process")
    import torch  # noqa: F401  (takes seconds; the fork server does the same meanwhile)

    gc.freeze()  # searching torch's objects for garbage took 0.15 s after each unfit problem
    worker = Channel.from_fd(int(sys.argv[1]))
    logging.basicConfig(level=logging.WARNING, handlers=[_ToWorker(worker)])
    judge = JudgeProcess(worker)
    with contextlib.suppress(ChannelClosed):
        while True:
            order = worker.receive()
            try:
                judge.execute(order)
            except ChannelClosed:
                worker.send({"op": "lost"})  # a runner died; the worker knows which and why
            except TooLarge as large:
                worker.send(_too_large(order, str(large)))
            except UnfitReference as unfit:
                text = f"the reference cannot judge a kernel: {unfit}"
                worker.send({"op": "unfit", "error": text, "intact": True})
            except USERS_ERRORS as error:
                # The process's last resort: a fault of ours or of the reference must reach the worker.
                worker.send(_failure(order, error))


class JudgeProcess:
    """The open sessions, and what each order does with them."""

    def __init__(self, worker: Channel) -> None:
        self._worker = worker
        self._sessions: dict[str, ReferenceSession] = {}
        self._closing_s = 0.0
        """How long closing sessions took since one was opened: the worker waited for that, too."""
        self._kept: tuple[Channel, int] | None = None
        """Channel and process of a candidate's runner that is to be judged on another problem next."""
        self._head_to_head: HeadToHead | None = None
        self._step: RoundStep | None = None

    def execute(self, order: Message) -> None:
        """Executes the worker's order and answers it. Raises whatever goes wrong."""
        session = self._sessions.get(order.get("session", ""))
        match order["op"]:
            case "open":
                self._sessions[order["session"]] = self._open(order)
            case "close":
                del session  # or its memory would stay allocated
                self._closing_s += _close(self._sessions.pop(order["session"], None))
            case "audit":
                device_memory.require_room(Problem.from_json(order["problem"]))
                found = audit(Problem.from_json(order["problem"]))
                self._worker.send({"op": "audited", "audit": found.to_json()})
            case "judge" if session is not None:
                self._worker.send({"op": "verdict", **self._judge(session, order).message()})
            case "probe" if session is not None:
                probe = self._probe(session, order)
                self._worker.send({"op": "probed", "probe": probe.to_json()})
            case "compare" if session is not None:
                channels = [Channel.from_fd(fd) for fd in self._worker.take_fds(order["fds"])]
                session.start_clock()
                self._head_to_head = HeadToHead(
                    session, channels, order["pids"], Plan(**order["plan"]), Effort(order["effort"])
                )
                self._worker.send({"op": "comparing"})
            case "next" if self._head_to_head is not None:
                self._next(self._head_to_head)
            case "go" if self._step is not None:
                self._worker.send({"op": "turned", "failed": self._step.run()})
            case "recheck" if session is not None:
                self._worker.send({"op": "rechecked", "slow": _is_slow(session, order)})

    def _open(self, order: Message) -> ReferenceSession:
        import torch

        steps = Steps(torch.cuda.synchronize if order["problem"]["device"] == "cuda" else None)
        problem, options = Problem.from_json(order["problem"]), SessionOptions.from_json(order["options"])
        device_memory.require_room(problem)
        if COMPILES.search(problem.source):
            logger.warning("torch.compile is turned off in the reference: its baseline is eager PyTorch")
        timed = problem.timed
        baseline = (Channel.from_fd(self._worker.take_fds(1)[0]), order["pids"][0]) if timed else None
        session = ReferenceSession(problem, options, baseline, steps)
        seconds = steps.seconds() | {OpeningStep.CLOSING.value: self._closing_s}
        self._worker.send({"op": "opened", "facts": _facts(session), "seconds": seconds})
        self._closing_s = 0.0
        return session

    def _judge(self, session: ReferenceSession, order: Message) -> Verdict:
        fds = self._worker.take_fds(order["fds"])
        session.start_clock()
        if len(fds) > 1:
            with session.clock.step(Stage.COMPILING):
                runs = _take_compiled(session, Channel.from_fd(fds[1]), order["pids"][1])
            self._worker.send({"op": "compiled", "runs": runs})
        with session.clock.step(Stage.CANARY):
            canary_ms = session.canary_ms()
        with session.clock.step(Stage.STARTING):
            channel, pid = self._candidate(fds, order["pids"])
            client = session.candidate(channel, pid)

        is_kept = False
        try:
            candidate_evaluation = CandidateEvaluation(
                session,
                client,
                Plan(**order["plan"]),
                order["scratch"],
                effort=Effort(order["effort"]),
                say=self._say,
            )
            verdict = candidate_evaluation.verdict()
            is_kept = verdict.status is Status.CORRECT and order["keep"]
            canary = None if canary_ms is None else f"{canary_ms:.4g}"
            return replace(verdict, canary_ms=canary, stages_s=session.clock.seconds())
        finally:
            if is_kept:
                self._kept = channel, pid
            else:
                client.close()

    def _probe(self, session: ReferenceSession, order: Message) -> Probe:
        channel, pid = self._candidate(self._worker.take_fds(order["fds"]), order["pids"])
        client = session.candidate(channel, pid)
        plan, marks = Plan(**order["plan"]), TraceMarks(**order["marks"])
        try:
            return ProbeMeasurement(session, client, plan, marks, self._say).result()
        finally:
            client.close()

    def _say(self, stage: Stage) -> None:
        self._worker.send({"op": "stage", "stage": stage})

    def _candidate(self, fds: Sequence[int], pids: Sequence[int]) -> tuple[Channel, int]:
        """Channel and process of a new runner, or of the one that was kept. Raises ChannelClosed."""
        kept, self._kept = self._kept, None
        if not fds and kept is not None:
            return kept
        if kept is not None:  # it is not judged any more, and the worker has ended it
            kept[0].close()
        channel = Channel.from_fd(fds[0])
        ready(channel)
        return channel, pids[0]

    def _next(self, head_to_head: HeadToHead) -> None:
        self._step = next(head_to_head.steps, None)
        if self._step is not None:
            self._worker.send({"op": "turn", "candidate": self._step.candidate})
            return
        verdicts = [each.message() for each in head_to_head.verdicts()]
        self._worker.send({"op": "verdicts", "verdicts": verdicts})
        head_to_head.close()
        self._head_to_head = None


def _too_large(order: Message, why: str) -> Message:
    """The answer about a problem that does not fit into the device's memory."""
    sizes = ", ".join(sorted(assigned_names(order["problem"]["source"])))
    hint = f" (smaller sizes may fit: problem.sizes.<name>=..., with one of {sizes})" if sizes else ""
    return {"op": "unfit", "error": f"{NOT_HERE}: {why}{hint}", "of_memory": True}


def _failure(order: Message, error: BaseException) -> Message:
    """The answer to an order that failed. A failure while a problem is being opened is the reference's fault,
    unless the machine lacks something."""
    if order["op"] in ("open", "audit") and (why := device_memory.used_up(error)):
        return _too_large(order, why)
    of_memory = isinstance(error, MemoryError) or "out of memory" in str(error)
    text = str(error) if isinstance(error, CandidateRefused) else "".join(traceback.format_exception(error))
    opens = order["op"] in ("open", "audit")
    asserted = opens and ASSERTED in text
    if asserted and order["op"] == "open" and not order["options"]["keep_range"]:
        return {"op": "asserted"}
    cause = cause_of(text)
    said = MACHINES_FAULT.search(cause) and not CALLERS_FAULT.search(cause)
    machines = (isinstance(error, (OSError, MemoryError)) or said) and type(error) is not FileNotFoundError
    if not opens or (machines and not asserted):
        return {"op": "failed", "error": text, "of_memory": of_memory}
    return {
        "op": "unfit",
        "error": f"the reference cannot be run:\n{text}",
        "intact": _is_sound(order["problem"]["device"]),
    }


def _is_sound(device: str) -> bool:
    """Whether this process can continue after an error of a reference, such as an operator that a device
    lacks for a dtype: whether the work queued on the device has completed."""
    import torch

    with contextlib.suppress(RuntimeError):
        if device == "cuda":
            torch.cuda.synchronize()
        return True
    return False


def _close(session: ReferenceSession | None) -> float:
    """Frees the memory of a session, or of one that could not be opened. Returns how long that took, in s."""
    import torch

    start = time.monotonic()
    if session is not None:
        session.close()
    else:
        gc.collect()
        torch.cuda.empty_cache()
    return time.monotonic() - start


def _take_compiled(session: ReferenceSession, channel: Channel, pid: int) -> bool:
    """Keeps the `torch.compile` baseline for this and later candidates. Returns whether it can run the
    reference."""
    try:
        ready(channel)
        session.compiled = session.baseline(channel, pid)
        session.compiled.block(session.staged(min(2, session.capacity)))
    except (CandidateRefused, ChannelClosed) as error:
        logger.warning("torch.compile could not run the reference: %s", error)
        session.compiled = None
    return session.compiled is not None


def _is_slow(session: ReferenceSession, order: Message) -> bool:
    """Whether the baseline is as slow without the candidate, which has ended, as it was next to it."""
    calibration, before_ms = session.calibration, order["before_ms"]

    def is_slow(calls: int) -> bool:
        now_ms = session.times_ms(calibration.eager_alone(calls))
        return sabotaged(before_ms, now_ms, calibration.baseline_slack_ms(calls)) is not None

    if is_slow(order["before_calls"]):
        return True
    calibration.learn_short_blocks(before_ms, order["baseline_calls"])
    return is_slow(order["baseline_calls"])


def _facts(session: ReferenceSession) -> dict[str, Any]:
    """Facts of the device for kernel authors."""
    import torch

    facts: dict[str, Any] = {
        "isolation": session.isolation,
        "buffer_bytes": session.buffers.memory.numel(),
        "baseline_bytes": session.memory.baseline_bytes,
        **session.limits.facts(),
        "device": cpu_name(),
        "torch": str(torch.__version__),
        **toolchain(session.device),
    }
    if session.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts["device"] = properties.name
        facts["architecture"] = f"{properties.major}.{properties.minor}"
        facts["cuda"] = torch.version.cuda or ""
        for name in DEVICE_FACTS:
            if hasattr(properties, name):
                facts[name] = getattr(properties, name)
    return facts


if __name__ == "__main__":
    main()
