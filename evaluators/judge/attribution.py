"""Whose code did a candidate's work, where a problem's kernels must do it themselves (`no_library`).

On a GPU the device's trace decides. On a CPU samples of the candidate's stacks tell the share, and decide
only on plain evidence, so that no verdict depends on what else runs on the machine.
"""

from __future__ import annotations

import time
from pathlib import Path

from evaluators.evaluation import Status
from evaluators.isolation.scratch import SOURCE
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import Refused, RunnerClient
from evaluators.judge.stack_samples import StackSamples
from evaluators.judge.work_share import not_its_own, share_of_kernels
from evaluators.system.process_inspection import can_peek

CALLS = 4
"""With different inputs."""
BATCH_SAMPLES, MOST_BATCH_CALLS, MOST_BATCH_BYTES = 4, 1000, 64 * 2**20
"""Of calls that are sampled together, back to back: for how many samples there should be time, how many calls
they are at most, and what all their outputs may take. So a sample meets calls of microseconds as well as
others."""
PATIENCE_S = 20.0
"""For samples: on an idle machine they take half a second."""


class Attribution:
    """Of one candidate's work. Where the policy is `any` it does nothing."""

    def __init__(self, session: ReferenceSession, client: RunnerClient, scratch: str) -> None:
        """`scratch`: the candidate's folder, before any of its code has run."""
        self._session, self._client = session, client
        self._source, self._stack_samples = "", None
        if session.vendor_kernels is not None:
            self._source = Path(scratch, SOURCE).read_text()
        if session.problem["libraries"] == "no_library" and session.device == "cpu" and can_peek():
            self._stack_samples = StackSamples(client.pid, scratch)
        self.own_share: float | None = None
        """The part of the computing that the candidate's own code did; None where that is not known."""

    def count(self) -> None:
        """Finds it out. Raises Refused."""
        if self._session.vendor_kernels is not None:
            reason = self._traced()
        elif self._stack_samples is not None:
            reason = self._sampled_stacks(self._stack_samples)
        else:
            return
        if reason:
            raise Refused(Status.REJECTED, reason, "library")

    def _traced(self) -> str | None:
        """On a GPU, by some calls."""
        assert self._session.vendor_kernels is not None
        calls = min(CALLS, self._session.capacity)
        self._session.stage_fresh(calls, self._client)
        seen = share_of_kernels(self._client.trace(calls), self._session.vendor_kernels, self._source)
        self.own_share = seen.own_share
        return not_its_own(seen)

    def _sampled_stacks(self, stack_samples: StackSamples) -> str | None:
        """On a CPU, by as many samples as something depends on."""
        start = time.monotonic()
        slots = min(CALLS, self._session.capacity)
        self._session.stage_fresh(slots, self._client)
        most = min(MOST_BATCH_CALLS, max(1, MOST_BATCH_BYTES // self._session.buffers.outputs.call_bytes))
        length = 1
        while not stack_samples.decided and time.monotonic() - start < PATIENCE_S:
            before = stack_samples.count
            self._client.watched([number % slots for number in range(length)], stack_samples)
            if stack_samples.count < before + BATCH_SAMPLES:
                length = min(2 * length, most)
        self.own_share = stack_samples.own_share
        return stack_samples.reason()
