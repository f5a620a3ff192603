"""On a GPU: whether times are those of calls that were computed one by one, each with its own output."""

from __future__ import annotations

import itertools
import math
import secrets

from evaluators.evaluation import Status
from evaluators.judge.correctness_checks import CorrectnessChecks
from evaluators.judge.gpu_timing import CHAIN_CALLS, SINGLES, GpuCalibration, GpuRunnerClient
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import Refused, RunnerClient
from evaluators.timing import SLACK_MS, batched, suspicious, undelivered

CHECKED_LINKS = 8
MOST_CHAINS = 8
"""That a kernel is given to be fast enough in one: the first warms up, and a busy machine makes some slow."""
MOST_KEPT_BLOCKS = 8
SLACK = SLACK_MS["cuda"]


class TimingChecks:
    """Of a candidate that has been timed. What an honest kernel cannot have raises Refused."""

    def __init__(
        self,
        session: ReferenceSession,
        calibration: GpuCalibration,
        client: GpuRunnerClient,
        correctness_checks: CorrectnessChecks,
    ) -> None:
        self._session, self._calibration = session, calibration
        self._client, self._correctness_checks = client, correctness_checks
        self.remarks: list[str] = []
        """What a correct kernel's log says of it."""

    def more_ms(self, calls: int, kernel_ms: float) -> float:
        """ms a call that count besides, of a kernel whose blocks have so many calls of `kernel_ms`."""
        more_ms = 0.0
        if calls > 1 and self._calibration.link_ms:
            singles = [self._correctness_checks.timed_block(1) for _ in range(SINGLES)]
            self._correctness_checks.settle()
            if suspicious(singles, kernel_ms, self._calibration.waking_ms, SLACK):
                more_ms = self.batching_ms(calls, kernel_ms)
        return more_ms + self._unproven_ms(calls)

    def batching_ms(self, calls: int, kernel_ms: float) -> float:
        """ms that a call takes longer in a chain, in which none can begin before the answer to the one before
        is there, if it is far longer. Raises Refused if it is, but for kernels that wait for the GPU in every
        call: nothing hides the launches of a chain there, and their noise is no proof. Raises RuntimeError
        where no chain was queued before it began, although blocks were: their launches count in it."""
        waits = self._client.waits and not self._client.queued_some
        link_ms, chain_ms, reason = self._calibration.link_ms[waits], math.inf, None
        queued = False
        for _ in range(MOST_CHAINS):
            chain_ms = min(chain_ms, self._chain_ms(min(calls, CHAIN_CALLS)))
            queued = queued or not self._client.late
            reason = batched(chain_ms, kernel_ms, link_ms, SLACK)
            if reason is None:
                return 0.0
        if not waits:
            if not queued:
                raise RuntimeError("no chain of calls was queued in time: the machine is busy")
            raise Refused(Status.REJECTED, str(reason), "batched calls")
        self.remarks.append(f"it waits for the GPU in every call, and is timed in a chain: {reason}")
        return chain_ms - link_ms - kernel_ms

    def _chain_ms(self, calls: int) -> float:
        """ms a call of the candidate in a chain, some calls of which are checked."""
        batch = self._session.stage_fresh(calls, self._client, own=True)
        block, order = self._client.chain(batch)
        seen, snapshot = self._correctness_checks.seen(calls), self._session.buffers.snapshot
        before = {call: last for last, call in itertools.pairwise(order)}
        chosen = secrets.SystemRandom().sample(order[1:], min(CHECKED_LINKS, calls - 1))
        for call, outputs in [(seen.call, seen.outputs), *((each, snapshot(each)) for each in chosen)]:
            if call in before:
                self._correctness_checks.require_chained(batch.draws[call], outputs, snapshot(before[call]))
        return block.call_ms(self._calibration.overhead(calls).total_ms)

    def _unproven_ms(self, calls: int) -> float:
        """ms a call that were taken off for the copying of outputs, where it is not proven that the kernel
        works as much without: one that returns the same memory in every call cannot hand it in later. Raises
        Refused when blocks are about as long without the copying as with it; of each kind the fastest counts,
        since noise only adds."""
        delivery_ms = self._calibration.overhead(calls).delivery_ms
        whole_ms = kept_ms = math.inf
        proven = True
        for _ in range(MOST_KEPT_BLOCKS):
            whole_ms = min(whole_ms, self._correctness_checks.checked_block(calls)[0].wall_ms)
            batch = self._session.stage_fresh(calls, self._client)
            block, call, left = self._client.kept_block(batch)
            kept_ms = min(kept_ms, block.wall_ms)
            answers = [each for each in (self._session.buffers.snapshot(call), left) if each]
            proven = proven and any(
                self._correctness_checks.is_right(each, batch.draws[call]) for each in answers
            )
            reason = undelivered(whole_ms, kept_ms, delivery_ms)
            if reason is None:
                return 0.0 if proven else delivery_ms / calls
        raise Refused(Status.REJECTED, str(reason), "outputs not handed in")


def timing_checks(
    session: ReferenceSession, client: RunnerClient, correctness_checks: CorrectnessChecks
) -> TimingChecks | None:
    """Of the candidate; None on a CPU, where calls are made one by one, and where nothing is timed."""
    if not (session.problem.timed and isinstance(client, GpuRunnerClient)):
        return None
    calibration = session.calibration
    assert isinstance(calibration, GpuCalibration)
    return TimingChecks(session, calibration, client, correctness_checks)
