"""The trusted process: draws secret inputs, knows the right answers, holds the clock, gives the verdict.

It never has a candidate in its address space; it speaks with runners over channels that its parent, the
worker, hands to it, and with the worker:

    -> open {problem, ...} + eager runner's channel
    <- opened {facts} | failed {error}
    -> judge {plan, ...} + candidate's channel (+ the compiled baseline's)
    <- compiled {runs}, stage {stage}, ..., verdict {status, ...}

It waits for a runner without a limit of its own: the worker holds the deadlines and kills the runner, which
closes the channel.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from evaluators import sandbox
from evaluators.census import (
    ENOUGH_SAMPLES,
    LONGEST_S,
    WATCHED_MS,
    Census,
    ThreadSampler,
    can_sample,
    of_kernels,
)
from evaluators.channel import Channel, ChannelClosed, Message
from evaluators.correctness import FAMILIES, Comparison
from evaluators.court import Court
from evaluators.evaluation import Status, Timing
from evaluators.side import Refused, Side
from evaluators.timing import Block, Plan, batched, median_interval, sabotaged

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

CHECKED_CALLS = 3
CENSUS_CALLS = 4
SINGLES = 8
"""Blocks of one call, against which the blocks of many are held."""

Stage = Callable[[str], None]
Outputs = list["torch.Tensor"]


class Trial:
    """One candidate before the court. `say` is told when a stage begins."""

    def __init__(
        self, court: Court, side: Side, plan: Plan, scratch: str, *, thorough: bool, say: Stage
    ) -> None:
        self._court, self._side, self._plan, self._scratch = court, side, plan, scratch
        self._compiled = court.compiled if thorough else None
        self._say = say
        self._overheads: dict[int, float] = {}
        self._families: dict[str, bool] = {}
        self._comparisons: list[Comparison] = []
        self._census: Census | None = None

    def verdict(self) -> Message:
        """Loads, checks and times the candidate; always a verdict. Raises ChannelClosed if it died."""
        timing: Timing | None = None
        status, log, rule = Status.CORRECT, "", ""
        try:
            self._say("loading")
            before = self._eager_alone()
            self._court.load(self._side)
            self._say("checking")
            call_ms = self._check()
            self._say("counting")
            self._count(call_ms)
            self._say("timing")
            timing = self._time(call_ms, before)
        except Refused as refused:
            status, log, rule = refused.status, refused.log, refused.rule
        return {
            "op": "verdict",
            "status": status.value,
            "log": log or self._notes(),
            "rule": rule,
            "timing": None if timing is None else asdict(timing),
            "correctness": self._correctness(),
            "own_share": None if self._census is None else self._census.own_share,
        }

    def _eager_alone(self) -> list[float]:
        """The baseline's time a call in ms while the candidate has not been loaded."""
        calls = self._eager_calls()
        with self._side.frozen():
            return [self._call_ms(self._court.eager, calls) for _ in range(3)]

    def _check(self) -> float:
        """Correctness on the problem's own inputs, then on the families. Returns about how long a call takes
        in ms, of two the shorter."""
        capacity = self._court.capacity
        first = self._check_block(1)
        again = self._check_block(self._plan.calls(first, min(CHECKED_CALLS, capacity)))
        names = list(FAMILIES)
        for start in range(0, len(names), capacity):
            chosen = names[start : start + capacity]
            for family, seed, outputs in zip(chosen, *self._answered(chosen)[1:], strict=True):
                self._try_family(family, seed, outputs)
        return min(first, again)

    def _check_block(self, calls: int) -> float:
        block, seeds, answers = self._answered([""] * calls)
        for seed, outputs in zip(seeds, answers, strict=True):
            self._require(seed, outputs)
        return block.call_ms(self._overhead_ms(calls))

    def _answered(self, families: list[str]) -> tuple[Block, list[int], list[Outputs]]:
        """A block with one fresh call a family: its secret seeds, and private copies of what came out."""
        seeds = self._court.stage_fresh(families)
        block = self._run(len(families))
        return block, seeds, [self._court.snapshot(call) for call in range(len(families))]

    def _require(self, seed: int, outputs: Outputs) -> None:
        comparison = self._court.check(outputs, seed)
        if comparison is None:
            return
        self._comparisons.append(comparison)
        if comparison.problem:
            raise Refused(Status.INCORRECT, f"wrong on fresh inputs: {comparison.problem}")

    def _try_family(self, family: str, seed: int, outputs: Outputs) -> None:
        comparison = self._court.check(outputs, seed, family)
        if comparison is None:
            return
        self._families[family] = not comparison.problem
        if comparison.problem and self._court.problem["tolerance"] == "strict":
            raise Refused(Status.INCORRECT, f"wrong on inputs of the family '{family}': {comparison.problem}")

    def _count(self, call_ms: float) -> None:
        """Who does the computing, where the problem has a policy on that."""
        if self._court.problem["libraries"] == "any":
            return
        if self._court.device == "cuda":
            calls = min(CENSUS_CALLS, self._court.capacity)
            self._court.stage_fresh([""] * calls)
            self._census = of_kernels(self._side.census(calls))
        elif can_sample():
            self._census = self._sample(
                replace(self._plan, block_ms=WATCHED_MS).calls(call_ms, self._court.capacity)
            )
        if self._census is not None and (reason := self._census.reason()):
            raise Refused(Status.REJECTED, reason, "library")

    def _sample(self, calls: int) -> Census:
        """Blocks like the others, watched from outside until enough was seen."""
        sampler = ThreadSampler(self._side.pid, self._scratch)
        start = time.monotonic()
        while sampler.samples < ENOUGH_SAMPLES and time.monotonic() - start < LONGEST_S:
            with sampler:
                self._spot_check(calls)
        return sampler.census()

    def _time(self, call_ms: float, before: list[float]) -> Timing:
        """Alternates blocks of kernel and baselines (ABBA) until the interval is narrow enough."""
        plan = self._plan
        calls = plan.calls(call_ms, self._court.capacity)
        singles = [self._timed_block(1) for _ in range(SINGLES)]
        kernel: list[float] = []
        eager: list[float] = []
        compiled: list[float] = []
        steps: list[Callable[[], None]] = [
            lambda: kernel.append(self._timed_block(calls)),
            lambda: eager.append(self._baseline_block(self._court.eager)),
        ]
        if (other := self._compiled) is not None:
            steps.append(lambda: compiled.append(self._baseline_block(other)))
        start = time.monotonic()
        while True:
            for step in steps if len(kernel) % 2 == 0 else reversed(steps):
                step()
            ratios = [e / k for k, e in zip(kernel, eager, strict=True)]
            if plan.enough(ratios, time.monotonic() - start):
                break
        self._audit(singles, kernel, before, eager)
        speedup, low, high = median_interval(ratios)
        return Timing(
            kernel_ms=statistics.median(kernel),
            eager_ms=statistics.median(eager),
            compile_ms=statistics.median(compiled) if compiled else None,
            speedup=speedup,
            speedup_low=low,
            speedup_high=high,
            kernel_samples_ms=tuple(kernel),
            eager_samples_ms=tuple(eager),
        )

    def _audit(
        self, singles: list[float], kernel: list[float], before: list[float], eager: list[float]
    ) -> None:
        """Raises Refused for times that an honest kernel cannot have."""
        with self._side.frozen():
            eager_singles = [self._call_ms(self._court.eager, 1) for _ in range(SINGLES)]
        if reason := batched(singles, statistics.median(kernel), eager_singles, statistics.median(eager)):
            raise Refused(Status.REJECTED, reason, "batched calls")
        # On a CPU the candidate is frozen beside the baseline; what runs slower there is the machine.
        if self._court.device == "cuda" and (reason := sabotaged(before, eager)):
            raise Refused(Status.REJECTED, reason, "sabotaged baseline")

    def _timed_block(self, calls: int) -> float:
        """ms a call of the candidate."""
        overhead_ms = self._overhead_ms(calls)
        return self._spot_check(calls).call_ms(overhead_ms)

    def _spot_check(self, calls: int) -> Block:
        """A block on fresh inputs, one call of which is checked, the others glanced at."""
        seeds = self._court.stage_fresh([""] * calls)
        chosen = secrets.randbelow(calls)
        block = self._run(calls)
        outputs = self._court.snapshot(chosen)
        if (missing := self._court.unwritten(calls)) is not None:
            raise Refused(
                Status.INCORRECT, f"when the runner said it was done, call {missing} had not been answered"
            )
        self._require(seeds[chosen], outputs)
        return block

    def _baseline_block(self, side: Side) -> float:
        with self._side.frozen():
            return self._call_ms(side, self._eager_calls())

    def _call_ms(self, side: Side, calls: int) -> float:
        return side.block(calls).call_ms(self._overhead_ms(calls))

    def _eager_calls(self) -> int:
        return self._plan.calls(self._court.eager_call_ms, self._court.capacity)

    def _run(self, calls: int) -> Block:
        with self._court.eager.frozen():
            return self._side.block(calls)

    def _overhead_ms(self, calls: int) -> float:
        """What a block of so many calls costs besides the calls: showing the inputs, messages, the copies of
        outputs. Measured with a runner of ours that writes outputs of the same form."""
        if calls not in self._overheads:
            with self._side.frozen():
                walls = [self._court.eager.block(calls, stand_in=True).wall_ms for _ in range(5)]
            self._overheads[calls] = statistics.median(walls)
        return self._overheads[calls]

    def _correctness(self) -> dict[str, Any] | None:
        finite = [c for c in self._comparisons if c.error != float("inf")]
        if not finite:
            return None
        return {
            "checked_calls": len(self._comparisons),
            "normwise_error": max(c.error for c in finite),
            "eager_error": max(c.eager_error for c in finite),
            "families": self._families,
        }

    def _notes(self) -> str:
        failed = [name for name, passed in self._families.items() if not passed]
        return f"outside the tolerance on inputs of the families: {', '.join(failed)}" if failed else ""


def main() -> None:
    """The referee's process: serves its worker until the channel closes."""
    sandbox.die_with_parent()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
    worker = Channel.from_fd(int(sys.argv[1]))
    court: Court | None = None
    with contextlib.suppress(ChannelClosed):
        while True:
            order = worker.receive()
            try:
                if order["op"] == "open":
                    court = None
                    channel = Channel.from_fd(worker.take_fds(1)[0])
                    court = Court(order["problem"], channel, order["pid"], order["options"])
                    facts = {
                        "isolation": court.eager.isolation,
                        "arena_bytes": court.arena.memory.numel(),
                        **_facts(court.device),
                    }
                    worker.send({"op": "opened", "facts": facts})
                elif order["op"] == "judge" and court is not None:
                    worker.send(_judge(court, worker, order))
            except ChannelClosed:
                worker.send({"op": "lost"})  # a runner died; the worker knows which and why
            except Exception as error:
                # The process's last resort: a fault of ours or of the reference must reach the worker.
                text = str(error) if isinstance(error, Refused) else traceback.format_exc()
                worker.send({"op": "failed", "error": text})


def _judge(court: Court, worker: Channel, order: Message) -> Message:
    fds = worker.take_fds(order["fds"])
    if len(fds) > 1:
        _take_compiled(court, Channel.from_fd(fds[1]), order["pids"][1])
        worker.send({"op": "compiled", "runs": court.compiled is not None})
    canary_ms = court.canary_ms()
    side = court.candidate(Channel.from_fd(fds[0]), order["pids"][0])

    def say(stage: str) -> None:
        worker.send({"op": "stage", "stage": stage})

    try:
        trial = Trial(
            court, side, Plan(**order["plan"]), order["scratch"], thorough=order["thorough"], say=say
        )
        return trial.verdict() | {"canary_ms": f"{canary_ms:.4g}"}
    finally:
        side.close()


def _take_compiled(court: Court, channel: Channel, pid: int) -> None:
    """The `torch.compile` baseline, kept for the candidates that follow."""
    try:
        court.compiled = court.baseline(channel, pid)
        court.compiled.block(min(2, court.capacity))
    except (Refused, ChannelClosed) as error:
        logger.warning("torch.compile could not run the reference: %s", error)
        court.compiled = None


def _facts(device: str) -> dict[str, Any]:
    import torch

    facts = {"device": _cpu_name(), "torch": str(torch.__version__)}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts["device"] = properties.name
        facts["architecture"] = f"{properties.major}.{properties.minor}"
        facts["cuda"] = torch.version.cuda or ""
    return facts


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"CPU, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
