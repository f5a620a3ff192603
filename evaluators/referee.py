"""The trusted process: draws secret inputs, knows the right answers, holds the clock, gives the verdict.

It never has a candidate in its address space; it speaks with runners over channels that its parent, the
worker, hands to it, and with the worker:

    -> open {problem, ...} + eager runner's channel                      <- opened {facts} | failed {error}
    -> judge {thorough} + candidate's channel (+ the compiled baseline's)  <- verdict {status, ...}

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
from dataclasses import asdict
from typing import Any

from evaluators import sandbox
from evaluators.channel import Channel, ChannelClosed, Message
from evaluators.correctness import FAMILIES, Comparison
from evaluators.court import Court, Refused, Runner
from evaluators.evaluation import Status, Timing
from evaluators.timing import Block, Plan, audit, median_interval

logger = logging.getLogger(__name__)

CHECKED_CALLS = 3


class Trial:
    """One candidate before the court."""

    def __init__(self, court: Court, runner: Runner, compiled: Runner | None, plan: Plan) -> None:
        self._court, self._runner, self._compiled, self._plan = court, runner, compiled, plan
        self.families: dict[str, bool] = {}
        self._comparisons: list[Comparison] = []

    def verdict(self) -> Message:
        """Loads, checks and times the candidate; always a verdict. Raises ChannelClosed if it died."""
        timing: Timing | None = None
        status, log, rule = Status.CORRECT, "", ""
        try:
            self._court.load_candidate(self._runner)
            call_ms = self._check()
            timing = self._time(call_ms)
        except Refused as refused:
            status, log, rule = refused.status, refused.log, refused.rule
        return {
            "op": "verdict",
            "status": status.value,
            "log": log or self._notes(),
            "rule": rule,
            "timing": None if timing is None else asdict(timing),
            "correctness": self._correctness(),
        }

    def _check(self) -> float:
        """Correctness on the problem's own inputs, then on the families. Returns ms a call."""
        capacity = self._court.capacity()
        block = self._check_block(1)
        again = self._plan.calls(block.median_ms, min(CHECKED_CALLS, capacity))
        block = self._check_block(again)  # a warm kernel now, and buffers that hold old answers
        names = list(FAMILIES)
        for start in range(0, len(names), capacity):
            chosen = names[start : start + capacity]
            _, seeds = self._court.run_fresh(self._runner, chosen)
            for call, (family, seed) in enumerate(zip(chosen, seeds, strict=True)):
                self._try_family(call, family, seed)
        return statistics.median(block.claimed_ms)

    def _check_block(self, calls: int) -> Block:
        block, seeds = self._court.run_fresh(self._runner, [""] * calls)
        for call, seed in enumerate(seeds):
            self._require(call, seed)
        return block

    def _require(self, call: int, seed: int) -> None:
        comparison = self._court.check(call, seed)
        if comparison is None:
            return
        self._comparisons.append(comparison)
        if comparison.problem:
            raise Refused(Status.INCORRECT, f"wrong on fresh inputs: {comparison.problem}")

    def _try_family(self, call: int, family: str, seed: int) -> None:
        comparison = self._court.check(call, seed, family)
        if comparison is None:
            return
        self.families[family] = not comparison.problem
        if comparison.problem and self._court.problem["tolerance"] == "strict":
            raise Refused(Status.INCORRECT, f"wrong on inputs of the family '{family}': {comparison.problem}")

    def _time(self, call_ms: float) -> Timing:
        """Alternates blocks of kernel and baselines (ABBA) until the interval is narrow enough."""
        court, plan = self._court, self._plan
        kernel_calls = plan.calls(call_ms, court.capacity())
        eager_calls = plan.calls(court.eager_call_ms, court.capacity())
        kernel: list[Block] = []
        eager: list[Block] = []
        compiled: list[Block] = []
        steps: list[Callable[[], None]] = [
            lambda: kernel.append(self._timed_block(kernel_calls)),
            lambda: eager.append(court.baseline.run(eager_calls)),
        ]
        if (other := self._compiled) is not None:
            steps.append(lambda: compiled.append(other.run(eager_calls)))
        start = time.monotonic()
        while True:
            for step in steps if len(kernel) % 2 == 0 else reversed(steps):
                step()
            ratios = [e.median_ms / k.median_ms for k, e in zip(kernel, eager, strict=True)]
            if plan.enough(ratios, time.monotonic() - start):
                break
        if reason := audit(kernel, eager):
            raise Refused(Status.REJECTED, reason, "claimed times")
        speedup, low, high = median_interval(ratios)
        samples = tuple(b.median_ms for b in kernel), tuple(b.median_ms for b in eager)
        return Timing(
            kernel_ms=statistics.median(samples[0]),
            eager_ms=statistics.median(samples[1]),
            compile_ms=statistics.median(b.median_ms for b in compiled) if compiled else None,
            speedup=speedup,
            speedup_low=low,
            speedup_high=high,
            kernel_samples_ms=samples[0],
            eager_samples_ms=samples[1],
        )

    def _timed_block(self, calls: int) -> Block:
        block, seeds = self._court.run_fresh(self._runner, [""] * calls)
        if min(block.claimed_ms) <= 0:
            raise Refused(Status.REJECTED, "the kernel claims to have taken no time", "claimed times")
        call = secrets.randbelow(calls)
        self._require(call, seeds[call])
        return block

    def _correctness(self) -> dict[str, Any] | None:
        finite = [c for c in self._comparisons if c.error != float("inf")]
        if not finite:
            return None
        return {
            "checked_calls": len(self._comparisons),
            "normwise_error": max(c.error for c in finite),
            "eager_error": max(c.eager_error for c in finite),
            "families": self.families,
        }

    def _notes(self) -> str:
        failed = [name for name, passed in self.families.items() if not passed]
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
                    baseline = Runner(Channel.from_fd(worker.take_fds(1)[0]))
                    court = Court(order["problem"], baseline, order["options"])
                    worker.send({"op": "opened", "eager_ms": court.eager_call_ms, **_facts(court.device)})
                elif court is not None:
                    worker.send(_judge(court, worker, order))
            except ChannelClosed:
                worker.send({"op": "lost"})  # a runner died; the worker knows which and why
            except Exception as error:
                # The process's last resort: a fault of ours or of the reference must reach the worker.
                text = str(error) if isinstance(error, Refused) else traceback.format_exc()
                worker.send({"op": "failed", "error": text})


def _judge(court: Court, worker: Channel, order: Message) -> Message:
    fds = worker.take_fds(order["fds"])
    candidate = Runner(Channel.from_fd(fds[0]))
    compiled: Runner | None = None
    if len(fds) > 1:
        compiled = Runner(Channel.from_fd(fds[1]))
        try:
            court.load_baseline(compiled)
            compiled.run(min(2, court.capacity()))
        except (Refused, ChannelClosed) as error:
            logger.warning("torch.compile could not run the reference: %s", error)
            compiled = None
    try:
        verdict = Trial(court, candidate, compiled, Plan(**order["plan"])).verdict()
        return verdict | {"isolation": candidate.isolation}
    finally:
        candidate.close()
        if compiled is not None:
            compiled.close()


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
