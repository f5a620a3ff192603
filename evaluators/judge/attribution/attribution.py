"""Whose code did a candidate's work, for problems whose kernels must do it themselves (`no_library`).

On a GPU the device's trace decides. On a CPU samples of the candidate's stacks show the share, and decide
only on plain evidence, so that no verdict depends on other programs on the machine.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path

from evaluators.isolation.scratch import SOURCE
from evaluators.judge.attribution.stack_samples import StackSamples
from evaluators.judge.attribution.vendor_kernels import VendorKernels
from evaluators.judge.attribution.work_share import not_its_own, share_of_kernels
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import CandidateRefused, RunnerClient
from evaluators.judge.timing.cpu_timing import CpuRunnerClient
from evaluators.judge.timing.gpu_timing import GpuRunnerClient
from evaluators.records.evaluation import Status
from evaluators.system.process_inspection import can_peek

CALLS = 4
"""Calls, each with different inputs."""
BATCH_SAMPLES, MOST_BATCH_CALLS, MOST_BATCH_BYTES = 4, 1000, 64 * 2**20
"""Calls sampled together, back to back: the samples that they should last for, the most calls, and the most
bytes of their outputs. So samples work for calls of microseconds too."""
PATIENCE_S = 20.0
"""Longest time to take samples: on an idle machine it takes half a second."""


class Attribution(ABC):
    """Attribution of one candidate's work."""

    own_share: float | None = None
    """The part of the computing that the candidate's own code did; None if unknown."""

    def count(self) -> None:
        """Determines the share. Raises CandidateRefused if the kernel does not do the work itself."""
        if reason := self._reason():
            raise CandidateRefused(Status.REJECTED, reason, "library")

    @abstractmethod
    def _reason(self) -> str | None:
        """Determines the share; returns why the kernel does not do the work itself, or None if it does."""


class TracedAttribution(Attribution):
    """On a GPU, from the trace of some calls."""

    def __init__(
        self, session: ReferenceSession, client: GpuRunnerClient, vendor_kernels: VendorKernels, source: str
    ) -> None:
        """`source` is the candidate's, read before any of its code has run."""
        self._session, self._client = session, client
        self._vendor_kernels, self._source = vendor_kernels, source

    def _reason(self) -> str | None:
        calls = min(CALLS, self._session.capacity)
        batch = self._session.stage_fresh(calls, self._client)
        seen = share_of_kernels(self._client.trace(batch), self._vendor_kernels, self._source)
        self.own_share = seen.own_share
        return not_its_own(seen)


class SampledAttribution(Attribution):
    """On a CPU, from as many stack samples as the result needs."""

    def __init__(self, session: ReferenceSession, client: CpuRunnerClient, scratch: str) -> None:
        """`scratch` is the candidate's folder."""
        self._session, self._client = session, client
        self._stack_samples = StackSamples(client.pid, scratch)

    def _reason(self) -> str | None:
        stack_samples = self._stack_samples
        start = time.monotonic()
        slots = min(CALLS, self._session.capacity)
        batch = self._session.stage_fresh(slots, self._client)
        most = min(MOST_BATCH_CALLS, max(1, MOST_BATCH_BYTES // self._session.buffers.outputs.call_bytes))
        length = 1
        while not stack_samples.decided and time.monotonic() - start < PATIENCE_S:
            before = stack_samples.count
            self._client.run_sampled(batch, [number % slots for number in range(length)], stack_samples)
            if stack_samples.count < before + BATCH_SAMPLES:
                length = min(2 * length, most)
        self.own_share = stack_samples.own_share
        return stack_samples.reason()


def attribution(session: ReferenceSession, client: RunnerClient, scratch: str) -> Attribution | None:
    """The attribution for this problem; None if kernels may use any library, or if this machine cannot tell.
    `scratch` is the candidate's folder, before any of its code has run."""
    if session.vendor_kernels is not None and isinstance(client, GpuRunnerClient):
        source = Path(scratch, SOURCE).read_text(encoding="utf-8")
        return TracedAttribution(session, client, session.vendor_kernels, source)
    if session.problem.libraries == "no_library" and isinstance(client, CpuRunnerClient) and can_peek():
        return SampledAttribution(session, client, scratch)
    return None
