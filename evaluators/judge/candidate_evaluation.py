"""Evaluates one candidate against the reference session: loads, checks, attributes and times it, and gives
its verdict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from evaluators.judge.attribution.attribution import attribution
from evaluators.judge.correctness_checks import CorrectnessChecks
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import BaselineFailed, CandidateRefused, RunnerClient
from evaluators.judge.timing.evenness import UNEVEN
from evaluators.judge.timing.timing_checks import timing_checks
from evaluators.records.evaluation import Stage, Status, Timing
from evaluators.records.timing import RESOLUTION_MS, SABOTAGED, Block, Plan, timing_of
from evaluators.records.verdict import Verdict
from evaluators.reference.inputs import weight_changes


@dataclass
class Samples:
    """Alternating blocks: the kernel's, of `calls` calls each, and the baselines'. Their overhead is
    subtracted once it is finally known."""

    calls: int
    kernel: list[Block] = field(default_factory=list)
    eager: list[Block] = field(default_factory=list)
    compiled: list[Block] = field(default_factory=list)


class CandidateEvaluation:
    """One candidate against the reference session. `say` is called when a stage begins."""

    def __init__(
        self,
        session: ReferenceSession,
        client: RunnerClient,
        plan: Plan,
        scratch: str,
        *,
        thorough: bool,
        say: Callable[[Stage], None],
    ) -> None:
        self._session, self._client, self._plan = session, client, plan.on(session.device)
        self._eager_calls = session.eager_calls(self._plan) if session.problem.timed else 0
        self._compiled = session.compiled if thorough else None
        self._say = say
        self._correctness_checks = CorrectnessChecks(session, client)
        self._timing_checks = timing_checks(session, client, self._correctness_checks)
        self._attribution = attribution(session, client, scratch)
        self._remarks: list[str] = []
        self._before: list[Block] = []
        """The baseline's blocks before the candidate was loaded."""
        self._others_bytes: int | None = None
        """`DeviceMemory.others_bytes` before the candidate was loaded."""

    def verdict(self) -> Verdict:
        """Loads, checks and times the candidate. Raises ChannelClosed if it died, MemoryError or
        OutOfMemoryError if memory to check it was lacking through no fault of the candidate, and
        BaselineFailed."""
        import torch

        timing: Timing | None = None
        status, log, rule = Status.CORRECT, "", ""
        try:
            self._say(Stage.LOADING)
            self._time_baseline()
            self._session.load(self._client)
            self._say(Stage.CHECKING)
            call_ms = self._correctness_checks.begin(self._plan)
            self._say(Stage.COUNTING)
            if self._attribution is not None:
                self._attribution.count()
            if self._session.problem.timed:
                self._say(Stage.TIMING)
                timing = self._checked(self._measure(call_ms))
        except (MemoryError, torch.OutOfMemoryError, BaselineFailed) as error:
            if not (overdrawn := self._overdrawn()):
                raise
            status, log = Status.CRASHED, f"there is no memory left to check it: {overdrawn}"
            log = f"{log}: {error}"
        except CandidateRefused as refused:
            status, log, rule = refused.status, refused.log, refused.rule
            if refused.compiler and self._session.problem.libraries == "no_library":
                status, rule = Status.REJECTED, "library"
        finally:
            self._session.reference.restore_weights()
        timing_remarks = [] if self._timing_checks is None else self._timing_checks.remarks
        return Verdict(
            status=status,
            log=log or "\n".join(timing_remarks + self._remarks),
            rule=rule,
            timing=timing,
            correctness=self._correctness_checks.correctness(),
            roofline=self._session.limits.roofline(),
            own_share=None if self._attribution is None else self._attribution.own_share,
            before_ms=tuple(self._session.times_ms(self._before)),
            baseline_calls=self._eager_calls,
        )

    def _overdrawn(self) -> str:
        """A message if the candidate uses more memory than it may; "" otherwise, or if it is not loaded
        yet."""
        if self._others_bytes is None:
            return ""
        memory = self._session.memory
        return memory.overdrawn(memory.others_bytes() - self._others_bytes, self._session.capacity)

    def _time_baseline(self) -> None:
        """Times the baseline alone, before the candidate is loaded."""
        if self._session.problem.timed:
            self._session.calibration.renew_overhead()
            self._before = self._session.calibration.eager_alone(self._session.eager_calls(self._plan))
            self._eager_calls = self._session.eager_calls(self._plan)
        self._others_bytes = self._session.memory.others_bytes()

    def _measure(self, call_ms: float) -> Samples:
        """Samples of a kernel whose calls take about `call_ms`, in blocks of suitable length."""
        calibration = self._session.calibration
        calls = self._block_calls(call_ms)
        samples = self._sample(calls)
        sampled_ms = statistics.median(self._session.times_ms(samples.kernel))
        # A kernel that was slower before is sampled again: short blocks are for slow kernels.
        if calibration.queues and self._plan.calls(sampled_ms, self._session.capacity) > 2 * calls:
            longer = self._block_calls(sampled_ms)
            if longer > 2 * calls:
                samples = self._sample(longer)
        calibration.lower_overhead()
        return samples

    def _checked(self, samples: Samples) -> Timing:
        """The timing that the samples give. Raises CandidateRefused if no honest kernel can have such times,
        RuntimeError if they are a mistake of ours."""
        calibration, calls = self._session.calibration, samples.calls
        even = calibration.evenness(samples.kernel, samples.eager)
        if even.reason:
            raise CandidateRefused(Status.REJECTED, even.reason, UNEVEN)
        session = self._session
        kernel, eager = session.times_ms(samples.kernel), session.fair_ms(self._before, samples.eager)
        if even.uneven:
            self._remarks.append(f"{even.remark}; it is timed by their mean")
            kernel = [even.factor * each for each in kernel]
        kernel_ms, eager_ms = statistics.median(kernel), statistics.median(eager)
        if calibration.queues and eager_ms <= RESOLUTION_MS:
            raise RuntimeError("the reference seems to take no time; a block's overhead was overestimated")
        if kernel_ms <= RESOLUTION_MS:
            self._require_true_overhead(calls)
        before, alongside = session.times_ms(self._before), session.times_ms(samples.eager)
        if reason := calibration.sabotage(before, alongside, self._eager_calls):
            raise CandidateRefused(Status.REJECTED, reason, SABOTAGED)
        if self._timing_checks is not None:
            more_ms = self._timing_checks.more_ms(calls, kernel_ms)
            kernel = [each + more_ms for each in kernel]
            kernel_ms += more_ms
        if reason := self._session.too_fast(kernel_ms, eager_ms, calls):
            self._require_true_overhead(calls)
            raise CandidateRefused(Status.REJECTED, reason, "roofline")
        return timing_of(kernel, eager, session.times_ms(samples.compiled))

    def _sample(self, calls: int) -> Samples:
        """Alternates blocks of kernel and baselines (ABBA) until the interval is narrow enough, followed by a
        last check with other weights."""
        calibration = self._session.calibration
        samples = Samples(calls=calls)

        def kernel_block() -> None:
            samples.kernel.append(self._correctness_checks.timed_block(calls))

        def baseline_block(client: RunnerClient, blocks: list[Block]) -> None:
            blocks.append(self._session.baseline_block(client, self._eager_calls))

        steps: list[Callable[[], None]] = [
            kernel_block,
            lambda: baseline_block(self._session.eager, samples.eager),
        ]
        if (other := self._compiled) is not None:
            steps.append(lambda: baseline_block(other, samples.compiled))
        start = time.monotonic()
        moments = weight_changes.moments()
        while True:
            if next(moments):
                self._correctness_checks.settle()
                self._correctness_checks.change_some_weights()
            for step in steps if len(samples.kernel) % 2 == 0 else reversed(steps):
                step()
            self._correctness_checks.settle()
            elapsed_s = time.monotonic() - start
            if self._plan.enough(self._ratios(samples), elapsed_s):
                even = calibration.evenness(samples.kernel, samples.eager)
                if not (even.undecided and self._plan.may_go_on(len(samples.kernel), elapsed_s)):
                    break
        self._correctness_checks.change_some_weights()
        return samples

    def _require_true_overhead(self, calls: int) -> None:
        """Raises RuntimeError if a kernel seems too fast because of a mistake of ours."""
        if self._session.calibration.overstates(calls):
            raise RuntimeError("the overhead of a block was overestimated; the machine was busy")

    def _block_calls(self, call_ms: float) -> int:
        """Number of calls per block of the kernel: as many as can be queued at once, which is tried; but the
        baseline's number if both are about equally fast, so that their blocks have the same overhead."""
        capacity = self._session.capacity
        calls, tried = self._plan.calls(call_ms, capacity), 0
        while calls > tried:
            tried = calls
            call_ms = self._session.call_ms(self._correctness_checks.timed_block(calls))
            self._correctness_checks.settle()
            room = self._client.queue_room(self._session.staged(calls), capacity)
            self._eager_calls = min(self._eager_calls, room)  # no side may gain by short blocks
            calls = min(self._plan.calls(call_ms, capacity), room)
            if max(calls, self._eager_calls) <= 2 * min(calls, self._eager_calls):
                calls = self._eager_calls
        return calls

    def _ratios(self, samples: Samples) -> list[float]:
        """The speedups, one per pair of blocks."""
        session = self._session
        kernel, eager = session.times_ms(samples.kernel), session.fair_ms(self._before, samples.eager)
        return [theirs / ours for ours, theirs in zip(kernel, eager, strict=True)]
