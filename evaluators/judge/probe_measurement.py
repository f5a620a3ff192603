"""Times one probe against the reference session's baseline, as a candidate is timed, but without looking at
its outputs."""

from __future__ import annotations

from collections.abc import Callable

from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import BaselineFailed, CandidateRefused, RunnerClient
from evaluators.judge.timing.paired_sampling import PairedSampling, unchecked_block
from evaluators.records.evaluation import Stage
from evaluators.records.probe import Probe, ProbeStatus, ProbeTimes, ProbeTrace, TraceMarks
from evaluators.records.timing import Block, Plan

WARM_UP_BLOCKS = 2


class UncheckedBlocks:
    """A probe's blocks, in place of `CorrectnessChecks`."""

    def __init__(self, session: ReferenceSession, client: RunnerClient) -> None:
        self._session, self._client = session, client

    def warm_up(self) -> float:
        """Runs some calls; returns the shortest time of one in ms."""
        return min(self._session.call_ms(self.timed_block(1)) for _ in range(WARM_UP_BLOCKS))

    def timed_block(self, calls: int) -> Block:
        """A block on fresh inputs, whose outputs are dropped."""
        return unchecked_block(self._session, self._client, calls)

    def settle(self) -> None:
        """Nothing was postponed."""

    def change_some_weights(self) -> None:
        """Nothing is checked."""


class ProbeMeasurement:
    """One probe against the reference session of a timed problem. `say` is called when a stage begins."""

    def __init__(
        self,
        session: ReferenceSession,
        client: RunnerClient,
        plan: Plan,
        marks: TraceMarks,
        say: Callable[[Stage], None],
    ) -> None:
        self._session, self._client, self._marks, self._say = session, client, marks, say
        self._client.probes = True
        self._blocks = UncheckedBlocks(session, client)
        self._sampling = PairedSampling(session, client, plan, self._blocks)

    def result(self) -> Probe:
        """Loads and times the probe. Raises ChannelClosed if it died, MemoryError or OutOfMemoryError if
        memory was lacking through no fault of the probe, and BaselineFailed."""
        try:
            with self._sampling.blaming_overuse():
                return self._timed()
        except BaselineFailed:
            raise
        except CandidateRefused as refused:
            return Probe.failed(refused.status, refused.log)

    def _timed(self) -> Probe:
        session, sampling = self._session, self._sampling
        self._say(Stage.LOADING)
        sampling.time_baseline()
        session.load(self._client)
        self._say(Stage.TIMING)
        samples = sampling.measure(self._blocks.warm_up())
        trace, remarks = self._trace()
        before, alongside = session.times_ms(sampling.before), session.times_ms(samples.eager)
        if slower := session.calibration.sabotage(before, alongside, sampling.eager_calls):
            remarks.append(f"{slower}; the machine was busy, or the probe disturbs it")
        eager_ms = session.fair_ms(sampling.before, samples.eager)
        return Probe(
            status=ProbeStatus.TIMED,
            log="\n".join(remarks),
            times=ProbeTimes.of(session.times_ms(samples.kernel), eager_ms),
            trace=trace,
        )

    def _trace(self) -> tuple[ProbeTrace | None, list[str]]:
        """The timeline of the last call, and what is wrong with its timestamps."""
        if not (marks := len(self._marks.names)):
            return None, []
        found = self._client.timestamps(marks)
        if not found.rows:
            return None, [f"no trace: it returned no int64 tensor of shape (workers, {marks})"]
        return ProbeTrace.of(self._marks, found.rows, found.workers), []
