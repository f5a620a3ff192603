"""Evaluates one candidate against the reference session: loads, checks, attributes and times it, and gives
its verdict."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evaluators.judge.attribution.attribution import attribution
from evaluators.judge.correctness_checks import CorrectnessChecks
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import BaselineFailed, CandidateRefused, RunnerClient
from evaluators.judge.timing.evenness import UNEVEN
from evaluators.judge.timing.paired_sampling import PairedSampling, Samples, unchecked_block
from evaluators.judge.timing.timing_checks import timing_checks
from evaluators.records.evaluation import Passes, Stage, Status, Timing
from evaluators.records.timing import RESOLUTION_MS, SABOTAGED, Block, Effort, Plan, timing_of
from evaluators.records.verdict import Verdict

NO_COMPILER = (
    "it needs torch's compiler, which no kernel may use where problem.libraries=no_library; Helion does, so "
    "write it in another language, or set problem.libraries=any"
)
FORWARD_PAIRS = 9
"""Blocks of forward passes, of the kernel and of eager PyTorch each."""


class CandidateEvaluation:
    """One candidate against the reference session. `say` is called when a stage begins. A QUICK evaluation
    leaves attribution and the checks of the timing to a later one, which must follow."""

    def __init__(
        self,
        session: ReferenceSession,
        client: RunnerClient,
        plan: Plan,
        scratch: str,
        *,
        effort: Effort,
        say: Callable[[Stage], None],
    ) -> None:
        self._session, self._client, self._say = session, client, say
        self._correctness_checks = CorrectnessChecks(session, client, effort)
        compiled = session.compiled if effort is Effort.THOROUGH else None
        quick = effort is Effort.QUICK
        self._sampling = PairedSampling(
            session, client, plan, self._correctness_checks, compiled=compiled, brief=quick
        )
        self._timing_checks = None if quick else timing_checks(session, client, self._correctness_checks)
        self._attribution = None if quick else attribution(session, client, scratch)
        self._remarks: list[str] = []
        self._passes: Passes | None = None
        self._times_passes = session.problem.backward and not quick

    def verdict(self) -> Verdict:
        """Loads, checks and times the candidate. Raises ChannelClosed if it died, MemoryError or
        OutOfMemoryError if memory to check it was lacking through no fault of the candidate, and
        BaselineFailed."""
        timing: Timing | None = None
        status, log, rule = Status.CORRECT, "", ""
        try:
            with self._sampling.blaming_overuse():
                timing = self._timing()
        except BaselineFailed:
            raise
        except CandidateRefused as refused:
            status, log, rule = refused.status, refused.log, refused.rule
            if refused.compiler and self._session.problem.libraries == "no_library":
                status, rule, log = Status.REJECTED, "library", f"{NO_COMPILER}\n{log}"
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
            passes=self._passes if status is Status.CORRECT else None,
            before_ms=tuple(self._session.times_ms(self._sampling.before)),
            before_calls=self._sampling.before[0].calls if self._sampling.before else 0,
            baseline_calls=self._sampling.eager_calls,
        )

    def _timing(self) -> Timing | None:
        """Loads, checks and times the candidate; None if the problem is not timed. Raises CandidateRefused if
        it is not correct."""
        with self._stage(Stage.LOADING):
            self._sampling.time_baseline()
            self._session.load(self._client)
        with self._stage(Stage.CHECKING):
            call_ms = self._correctness_checks.begin(self._sampling.plan)
        with self._stage(Stage.COUNTING):
            if self._attribution is not None:
                self._attribution.count()
        if not self._session.problem.timed:
            return None
        with self._stage(Stage.TIMING):
            samples = self._sampling.measure(call_ms)
            timing = self._checked(samples)
            if self._times_passes:
                self._passes = self._both_passes(samples.calls)
            return timing

    def _both_passes(self, calls: int) -> Passes:
        """The forward pass alone, in blocks that alternate with eager PyTorch's, and what either saves. After
        the timing, which it does not concern."""
        session, sides = self._session, (self._client, self._session.eager)
        blocks: list[list[Block]] = [[], []]
        try:
            for client in sides:
                client.forward = True
            for _ in range(FORWARD_PAIRS):
                for client, found, number in zip(
                    sides, blocks, (calls, self._sampling.eager_calls), strict=True
                ):
                    found.append(unchecked_block(session, client, number))
        finally:
            for client in sides:
                client.forward = False
        forward_ms, eager_ms = (statistics.median(session.times_ms(each)) for each in blocks)
        saved, eager_saved = (client.saved_bytes() for client in sides)
        return Passes(
            forward_ms=max(forward_ms, 0.0),
            eager_forward_ms=max(eager_ms, 0.0),
            saved_bytes=saved,
            eager_saved_bytes=eager_saved,
        )

    @contextmanager
    def _stage(self, stage: Stage) -> Iterator[None]:
        self._say(stage)
        with self._session.clock.step(stage):
            yield

    def _checked(self, samples: Samples) -> Timing:
        """The timing that the samples give. Raises CandidateRefused if no honest kernel can have such times,
        RuntimeError if they are a mistake of ours."""
        session, calls, first = self._session, samples.calls, self._sampling.before
        calibration = session.calibration
        even = calibration.evenness(samples.kernel, samples.eager)
        if even.reason:
            raise CandidateRefused(Status.REJECTED, even.reason, UNEVEN)
        kernel, eager = session.times_ms(samples.kernel), session.fair_ms(first, samples.eager)
        if even.uneven:
            self._remarks.append(f"{even.remark}; it is timed by their mean")
            kernel = [even.factor * each for each in kernel]
        kernel_ms, eager_ms = statistics.median(kernel), statistics.median(eager)
        if calibration.queues and eager_ms <= RESOLUTION_MS:
            raise RuntimeError("the reference seems to take no time; a block's overhead was overestimated")
        if kernel_ms <= RESOLUTION_MS:
            self._require_true_overhead(calls)
        before, alongside = session.times_ms(first), session.times_ms(samples.eager)
        if reason := calibration.sabotage(before, alongside, self._sampling.eager_calls):
            raise CandidateRefused(Status.REJECTED, reason, SABOTAGED)
        if self._timing_checks is not None:
            with session.clock.step(Stage.TIMING_CHECKS):
                more_ms = self._timing_checks.more_ms(calls, kernel_ms)
            kernel = [each + more_ms for each in kernel]
            kernel_ms += more_ms
        if reason := session.too_fast(kernel_ms, eager_ms, calls):
            self._require_true_overhead(calls)
            raise CandidateRefused(Status.REJECTED, reason, "roofline")
        return timing_of(kernel, eager, session.times_ms(samples.compiled))

    def _require_true_overhead(self, calls: int) -> None:
        """Raises RuntimeError if a kernel seems too fast because of a mistake of ours."""
        if self._session.calibration.overstates(calls):
            raise RuntimeError("the overhead of a block was overestimated; the machine was busy")
