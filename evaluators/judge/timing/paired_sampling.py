"""Times a candidate in blocks that alternate with the baselines', until the interval of their ratio is narrow
enough."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import BaselineFailed, CandidateRefused, RunnerClient
from evaluators.records.evaluation import Stage, Status
from evaluators.records.timing import Block, Plan
from evaluators.reference.inputs import weight_changes


@dataclass
class Samples:
    """Alternating blocks: the kernel's, of `calls` calls each, and the baselines'. Their overhead is
    subtracted once it is finally known."""

    calls: int
    kernel: list[Block] = field(default_factory=list)
    eager: list[Block] = field(default_factory=list)
    compiled: list[Block] = field(default_factory=list)


class TimedBlocks(Protocol):
    """Runs a candidate's blocks, and checks what they leave (see `CorrectnessChecks`)."""

    def timed_block(self, calls: int) -> Block:
        """A block on fresh inputs."""
        ...

    def settle(self) -> None:
        """Does what was postponed because the clock was running."""
        ...

    def change_some_weights(self) -> None:
        """Checks with other values in some weights."""
        ...


def unchecked_block(session: ReferenceSession, client: RunnerClient, calls: int) -> Block:
    """A block on fresh inputs whose outputs are dropped. They are not copied, and the time of the copies,
    which the known overhead contains, is added."""
    block = client.block(session.stage_fresh(calls, client))
    return replace(block, wall_ms=block.wall_ms + session.calibration.overhead(calls).delivery_ms)


class PairedSampling:
    """One candidate's blocks and those of the baselines in `session`. With `compiled`, that baseline is timed
    too; if `brief`, the baseline's own time may be some seconds old, and nothing is measured again."""

    def __init__(
        self,
        session: ReferenceSession,
        client: RunnerClient,
        plan: Plan,
        blocks: TimedBlocks,
        *,
        compiled: RunnerClient | None = None,
        brief: bool = False,
    ) -> None:
        self._brief = brief
        self._session, self._client, self._blocks, self._compiled = session, client, blocks, compiled
        self.plan = plan.on(session.device)
        self.eager_calls = session.eager_calls(self.plan) if session.problem.timed else 0
        """Calls per block of the baseline."""
        self.before: list[Block] = []
        """The baseline's blocks before the candidate was loaded."""
        self._others_bytes: int | None = None
        """`DeviceMemory.others_bytes` before the candidate was loaded."""

    def time_baseline(self) -> None:
        """Times the baseline alone, before the candidate is loaded."""
        session = self._session
        if session.problem.timed:
            self.before = session.eager_alone(self.plan, renew=not self._brief)
            self.eager_calls = session.eager_calls(self.plan)
        self._others_bytes = session.memory.others_bytes()

    @contextmanager
    def blaming_overuse(self) -> Iterator[None]:
        """If memory is lacking in the block, or the baseline fails, raises CandidateRefused if the candidate
        uses more than it may, and otherwise what was raised: MemoryError, OutOfMemoryError or
        BaselineFailed."""
        import torch

        try:
            yield
        except (MemoryError, torch.OutOfMemoryError, BaselineFailed) as error:
            if not (overdrawn := self._overdrawn()):
                raise
            log = f"there is no memory left to check it: {overdrawn}: {error}"
            raise CandidateRefused(Status.CRASHED, log) from error

    def _overdrawn(self) -> str:
        """A message if the candidate uses more memory than it may; "" otherwise, or if it is not loaded
        yet."""
        if self._others_bytes is None:
            return ""
        memory = self._session.memory
        return memory.overdrawn(memory.others_bytes() - self._others_bytes, self._session.capacity)

    def measure(self, call_ms: float) -> Samples:
        """Samples of a kernel whose calls take about `call_ms`, in blocks of suitable length."""
        calibration = self._session.calibration
        calls = self._block_calls(call_ms)
        samples = self._sample(calls)
        sampled_ms = statistics.median(self._session.times_ms(samples.kernel))
        # A kernel that was slower before is sampled again: short blocks are for slow kernels.
        if (
            calibration.queues
            and not self._brief
            and self.plan.calls(sampled_ms, self._session.capacity) > 2 * calls
        ):
            longer = self._block_calls(sampled_ms)
            if longer > 2 * calls:
                samples = self._sample(longer)
        if not self._brief:
            with self._session.clock.step(Stage.CALIBRATING):
                calibration.lower_overhead()
        return samples

    def _sample(self, calls: int) -> Samples:
        """Alternates blocks of kernel and baselines (ABBA) until the interval is narrow enough, followed by a
        last check with other weights."""
        calibration = self._session.calibration
        samples = Samples(calls=calls)

        def kernel_block() -> None:
            samples.kernel.append(self._blocks.timed_block(calls))

        def baseline_block(client: RunnerClient, blocks: list[Block]) -> None:
            blocks.append(self._session.baseline_block(client, self.eager_calls))

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
                self._blocks.settle()
                self._blocks.change_some_weights()
            for step in steps if len(samples.kernel) % 2 == 0 else reversed(steps):
                step()
            self._blocks.settle()
            elapsed_s = time.monotonic() - start
            if self.plan.enough(self._ratios(samples), elapsed_s):
                even = calibration.evenness(samples.kernel, samples.eager)
                if not (even.undecided and self.plan.may_go_on(len(samples.kernel), elapsed_s)):
                    break
        self._blocks.change_some_weights()
        return samples

    def _block_calls(self, call_ms: float) -> int:
        """Number of calls per block of the kernel: as many as can be queued at once, which is tried; but the
        baseline's number if both are about equally fast, so that their blocks have the same overhead."""
        capacity = self._session.capacity
        calls, tried = self.plan.calls(call_ms, capacity), 0
        while calls > tried:
            tried = calls
            call_ms = self._session.call_ms(self._blocks.timed_block(calls))
            self._blocks.settle()
            room = self._client.queue_room(self._session.staged(calls), capacity)
            self.eager_calls = min(self.eager_calls, room)  # no side may gain by short blocks
            calls = min(self.plan.calls(call_ms, capacity), room)
            if max(calls, self.eager_calls) <= 2 * min(calls, self.eager_calls):
                calls = self.eager_calls
        return calls

    def _ratios(self, samples: Samples) -> list[float]:
        """The speedups, one per pair of blocks."""
        session = self._session
        kernel, eager = session.times_ms(samples.kernel), session.fair_ms(self.before, samples.eager)
        return [theirs / ours for ours, theirs in zip(kernel, eager, strict=True)]
