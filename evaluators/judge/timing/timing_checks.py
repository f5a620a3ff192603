"""On a GPU: whether the times are those of calls that were computed one by one, each with its own output."""

from __future__ import annotations

import itertools
import math
import secrets
import statistics
from typing import TYPE_CHECKING, NoReturn

from evaluators.judge.correctness_checks import CorrectnessChecks
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import CandidateRefused, RunnerClient
from evaluators.judge.timing.gpu_timing import CHAIN_CALLS, SINGLES, GpuCalibration, GpuRunnerClient
from evaluators.records.evaluation import Status
from evaluators.records.timing import DELIVERY_MATTERS, SLACK_MS, batched, delivers, suspicious

if TYPE_CHECKING:
    import torch

CHECKED_LINKS = 8
MOST_CHAINS = 24
"""Chains in which a kernel may show that it is fast enough: the first warms up, and a busy machine slows all
chains within half a second."""
MOST_KEPT_BLOCKS = 27
"""Blocks at most to find out whether a kernel's outputs are copied: on an H200, blocks vary by 0.1 ms;
copying 256 outputs of a few elements takes 0.45 ms, 64 take 0.15 ms."""
SLACK = SLACK_MS["cuda"]


class TimingChecks:
    """Checks a candidate that has been timed. Anything that an honest kernel cannot show raises
    CandidateRefused."""

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
        """Remarks for a correct kernel's log."""

    def more_ms(self, calls: int, kernel_ms: float) -> float:
        """ms per call to add to the time of a kernel whose blocks have `calls` calls of `kernel_ms`."""
        more_ms = 0.0
        if calls > 1 and self._calibration.link_ms:
            blocks = [self._correctness_checks.timed_block(1) for _ in range(SINGLES)]
            self._correctness_checks.settle()
            if suspicious(self._session.times_ms(blocks), kernel_ms, self._calibration.waking_ms, SLACK):
                more_ms = self.batching_ms(calls, kernel_ms)
        return more_ms + self._unproven_ms(calls)

    def batching_ms(self, calls: int, kernel_ms: float) -> float:
        """How much longer a call takes, in ms, in a chain, in which no call can begin before the answer to
        the previous one exists; 0 unless it is far longer. If it is, raises CandidateRefused, except for
        kernels that wait for the GPU in every call: nothing hides the launches of their chains, so the noise
        proves nothing. Raises RuntimeError if no chain was queued before it began although blocks were,
        because its launches would count."""
        waits = self._client.waits and not self._client.queued_some
        link_ms, chain_ms, reason = self._calibration.link_ms[waits], math.inf, None
        slack_ms = self._calibration.chain_slack_ms(link_ms)
        queued = False
        for _ in range(MOST_CHAINS):
            chain_ms = min(chain_ms, self._chain_ms(min(calls, CHAIN_CALLS)))
            queued = queued or not self._client.late
            reason = batched(chain_ms, kernel_ms, link_ms, slack_ms)
            if reason is None:
                return 0.0
        if not waits:
            if not queued:
                raise RuntimeError("no chain of calls was queued in time; the machine is busy")
            again_ms = self._calibration.measured_link_ms(waits=waits)
            if batched(chain_ms, kernel_ms, again_ms, slack_ms) is None:
                raise RuntimeError(
                    f"the overhead of a chain was underestimated, {link_ms:.4g} ms a call and now "
                    f"{again_ms:.4g}, next to a call of {kernel_ms:.4g} ms; the machine is busy"
                )
            raise CandidateRefused(Status.REJECTED, str(reason), "batched calls")
        self.remarks.append(f"it waits for the GPU in every call and is timed in a chain: {reason}")
        return chain_ms - link_ms - kernel_ms

    def _chain_ms(self, calls: int) -> float:
        """ms per call of the candidate in a chain, some calls of which are checked."""
        batch = self._session.stage_fresh(calls, self._client, own=True)
        block, order = self._client.chain(batch)
        seen, snapshot = self._correctness_checks.seen(calls), self._session.buffers.snapshot
        before = {call: last for last, call in itertools.pairwise(order)}
        # Among random numbers an answer counts once.
        others = [call for call in order[1:] if call != seen.call]
        chosen = secrets.SystemRandom().sample(others, min(CHECKED_LINKS, len(others)))
        for call, outputs in [(seen.call, seen.outputs), *((each, snapshot(each)) for each in chosen)]:
            if call in before:
                self._correctness_checks.require_chained(batch.draws[call], outputs, snapshot(before[call]))
        return block.call_ms(self._calibration.overhead(calls).total_ms)

    def _unproven_ms(self, calls: int) -> float:
        """ms per call that were subtracted for copying outputs, if it is not proven that the kernel does the
        same work without the copying: one that returns the same memory in every call cannot hand it in later;
        or blocks vary too much to tell, and the unseen part of the copying counts. Raises CandidateRefused if
        blocks take about as long without the copying as with it, RuntimeError if they only seem so because
        the copying was measured wrongly."""
        delivery_ms = self._calibration.overhead(calls).delivery_ms
        longer_ms: list[float] = []
        whole_ms, proven, copied = math.inf, True, None
        while copied is None and len(longer_ms) < MOST_KEPT_BLOCKS:
            whole = self._correctness_checks.checked_block(calls)[0]
            batch = self._session.stage_fresh(calls, self._client)
            kept, call, changed = self._client.kept_block(batch)
            handed_in = self._handed_in(call, changed)
            proven = proven and self._correctness_checks.is_right(handed_in, batch.draws[call])
            whole_ms = min(whole_ms, whole.wall_ms)
            longer_ms.append(whole.wall_ms - kept.wall_ms)
            hardly_matters = delivery_ms < DELIVERY_MATTERS * whole_ms
            copied = hardly_matters or delivers(longer_ms, delivery_ms)
        if copied is None:  # the copying may have been measured on a busy machine
            delivery_ms = min(delivery_ms, self._calibration.overhead_again(calls).delivery_ms)
            copied = delivers(longer_ms, delivery_ms) or None
        if copied is False:
            self._refuse_undelivered(calls, longer_ms, delivery_ms)
        if not proven:
            return delivery_ms / calls
        if copied:
            return 0.0
        unseen_ms = max(delivery_ms - max(statistics.median(longer_ms), 0.0), 0.0) / calls
        self.remarks.append(
            f"its blocks vary too much to tell whether outputs are copied: add {unseen_ms:.2g} ms per call"
        )
        return unseen_ms

    def _handed_in(self, call: int, changed: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of a call that were handed in after its block. Those in inputs that it had to change
        are taken from `changed`, because the inputs have been erased."""
        reference = self._session.reference
        outputs = self._session.buffers.snapshot(call)
        outputs[len(outputs) - len(changed) :] = changed
        for number, given in reference.returned_inputs:
            outputs[number].copy_(changed[reference.changed_inputs.index(given)])
        return outputs

    def _refuse_undelivered(self, calls: int, longer_ms: list[float], delivery_ms: float) -> NoReturn:
        again_ms = self._calibration.overhead_again(calls).delivery_ms
        if delivers(longer_ms, again_ms) is not False:
            raise RuntimeError("the time to copy outputs was overestimated; the machine is busy")
        log = (
            f"handing in the outputs took {max(statistics.median(longer_ms), 0):.4g} ms per block, but a "
            f"copy takes {delivery_ms:.4g} ms; they were not computed before"
        )
        raise CandidateRefused(Status.REJECTED, log, "outputs not handed in")


def timing_checks(
    session: ReferenceSession, client: RunnerClient, correctness_checks: CorrectnessChecks
) -> TimingChecks | None:
    """The checks of the candidate; None on a CPU, where calls are made one by one, and if the problem is not
    timed."""
    if not (session.problem.timed and isinstance(client, GpuRunnerClient)):
        return None
    calibration = session.calibration
    assert isinstance(calibration, GpuCalibration)
    return TimingChecks(session, calibration, client, correctness_checks)
