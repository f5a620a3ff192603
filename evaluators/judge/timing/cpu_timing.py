"""How calls are timed on a CPU: one by one, with the runner stopped before and after.

A call's inputs are shown while the runner is stopped. The clock runs from before the runner is resumed until
it has stopped again. Then the judge reads the outputs from its memory, if this machine allows that.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from evaluators.isolation import namespaces
from evaluators.judge.attribution.stack_samples import StackSamples
from evaluators.judge.runner_client import CandidateRefused, RunnerClient, shuffled
from evaluators.judge.staging import Batch, Staging
from evaluators.judge.timing.calibration import Calibration
from evaluators.judge.timing.evenness import Evenness, evenness
from evaluators.records.evaluation import Status
from evaluators.records.timing import SLACK_MS, Block, Overhead, Plan, block_sizes
from evaluators.runner.messages import Done, RunCalls
from evaluators.runner.shared_buffers import SampledOutput, SharedBuffers
from evaluators.system import process_inspection, process_tree
from evaluators.system.channel import Channel, ChannelClosed, ChannelTimeout

OVERHEAD_CALLS = 30
"""Calls by which the overhead of a call is measured."""


class CpuRunnerClient(RunnerClient):
    """A runner that is resumed for every call."""

    def __init__(self, channel: Channel, buffers: SharedBuffers, pid: int, *, ours: bool = False) -> None:
        super().__init__(channel, buffers, pid, ours=ours)
        self._runner = namespaces.runner_of(pid)
        self._waited_ms = 0.0
        self._stop_check = process_inspection.StopCheck()

    def block(self, batch: Batch, *, stand_in: int = 0) -> Block:
        """See `RunnerClient`. The block's time is the median of its calls."""
        walls_ms, waited_ms = [], []
        for call in shuffled(batch.calls):
            walls_ms.append(self._single_ms(batch, call, stand_in))
            waited_ms.append(self._waited_ms)
        return Block(
            calls=batch.calls,
            wall_ms=statistics.median(walls_ms) * batch.calls,
            walls_ms=tuple(walls_ms),
            waited_ms=tuple(waited_ms) if self.buffers.fetches else (),
        )

    def overhead(self, batch: Batch) -> Overhead:
        """See `RunnerClient`. The runner times the fillings itself, which are subtracted."""
        walls = [self.block(batch, stand_in=1).wall_ms for _ in range(OVERHEAD_CALLS)]
        return Overhead(total_ms=min(walls), delivery_ms=0.0)

    def queue_room(self, batch: Batch, capacity: int) -> int:
        """See `RunnerClient`. Nothing is queued."""
        return capacity

    def sampled_output(self, calls: int) -> SampledOutput:
        """See `RunnerClient`."""
        return self.buffers.sample_output(calls)

    def run_sampled(self, batch: Batch, calls: list[int], stack_samples: StackSamples) -> None:
        """Runs these calls of the batch, which may repeat, without a break, and samples the runner's threads
        meanwhile: so a sample finds the runner at work, however late it is taken."""
        for call in set(calls):
            self.buffers.show_one(batch.memory, call)
        with self._awake():
            self._channel.send(RunCalls(calls=calls, deliver=False).message())
            while True:
                try:
                    self._answer(Done, stack_samples.delay_s())
                    return
                except ChannelTimeout:
                    stack_samples.take([self._runner, *self._family])

    def _single_ms(self, batch: Batch, call: int, stand_in: int) -> float:
        """Times one call from before the runner is resumed until it has stopped again. Its inputs are shown,
        and its outputs read from the runner's memory, while the runner is stopped, so no code of the runner
        takes part."""
        order = RunCalls(
            calls=[call],
            seeds=batch.seeds,
            stand_in=stand_in,
            deliver=not self.buffers.fetches,
            keep=self.keeps,
            probe=self.probes,
            forward=self.forward,
        ).message()
        self.buffers.show_one(batch.memory, call)
        leaders = process_tree.spread_threads(self._family)
        self._require_still()
        timed = {os.getpid(), *self._family}
        waited_ns = process_inspection.waited_ns(timed)
        start = time.perf_counter()
        with self._awake():
            self._channel.send(order)
            process_tree.allow_all_cores(leaders)
            answer = self._answer(Done)
        self._waited_ms = (process_inspection.waited_ns(timed) - waited_ns) / 1e6
        wall_ms = (self._stopped_at - start) * 1e3
        self._fetch(call, answer.outputs)
        return wall_ms - ((answer.filling_ms or 0.0) if stand_in else 0.0)

    def _fetch(self, call: int, addresses: list[int] | None) -> None:
        """See `RunnerClient`. The runner is stopped."""
        if self.probes or self.forward or not self.buffers.fetches:
            return
        views = self.buffers.output_views[call]
        if addresses is None or len(addresses) != len(views):
            raise CandidateRefused(
                Status.REJECTED, f"not addresses of outputs: {addresses!r:.200}", "forged message"
            )
        try:
            for view, address in zip(views, addresses, strict=True):
                process_inspection.read_memory(
                    self._runner, address, view.data_ptr(), view.numel() * view.element_size()
                )
        except process_inspection.Unreadable as error:
            raise CandidateRefused(Status.INCORRECT, f"its output cannot be read: {error}") from error
        except ProcessLookupError as error:
            raise ChannelClosed("the runner is gone") from error
        except OSError as error:
            raise CandidateRefused(
                Status.REJECTED, "it denies access to its memory", "unobservable"
            ) from error

    def _require_still(self) -> None:
        """Raises CandidateRefused if a thread of the candidate has run since it was stopped: other signals
        than ours can resume a process, too."""
        if not self.buffers.fetches:
            return
        ran_ns = process_inspection.run_ns({self.pid, *process_tree.descendants(self.pid)})
        if self._ours:
            return  # after the same pause as a candidate's, because a core that slept longer wakes up later
        if reason := self._stop_check.violation(ran_ns):
            raise CandidateRefused(Status.REJECTED, reason, "not still")

    @contextmanager
    def _awake(self) -> Iterator[None]:
        try:
            with super()._awake():
                yield
        finally:
            if self.buffers.fetches:
                self._stop_check.begin(process_inspection.settled_ns(self._family))

    def _synchronize(self) -> None:
        """There is nothing to wait for."""


class CpuCalibration(Calibration):
    """For calls made one by one, while the machine does other work too: noise only adds to times, so that a
    smaller one is adopted at once."""

    queues = False
    noise_ms = SLACK_MS["cpu"]

    def __init__(self, eager: RunnerClient, staging: Staging, plan: Plan) -> None:
        """See `Calibration`."""
        single = eager.overhead(staging.batch(1))
        super().__init__(eager, staging, plan, _overheads(single, block_sizes(staging.capacity)))

    def connect(self, channel: Channel, buffers: SharedBuffers, pid: int) -> CpuRunnerClient:
        """See `Calibration`."""
        return CpuRunnerClient(channel, buffers, pid)

    def overstates(self, calls: int) -> bool:
        """See `Calibration`. The overhead is lowered before every candidate instead."""
        return False

    def renew_overhead(self) -> None:
        """See `Calibration`."""
        self.lower_overhead()

    def lower_overhead(self) -> None:
        """See `Calibration`. An overhead measured while the machine was busy would be subtracted from times
        that do not contain it."""
        seen = self._eager.overhead(self._staging.batch(1))
        lower = min(seen, self.overhead(1), key=lambda each: each.total_ms)
        self._overheads = _overheads(lower, self._overheads)

    def credible_ms(self, before_ms: Sequence[float], calls: int) -> float:
        """See `Calibration`. The candidate is stopped while the baseline runs, so slower blocks are the
        machine's fault."""
        return math.inf

    def sabotage(self, before_ms: Sequence[float], alongside_ms: Sequence[float], calls: int) -> str | None:
        """See `Calibration`, and `credible_ms`."""
        return None

    def evenness(self, kernel: Sequence[Block], eager: Sequence[Block]) -> Evenness:
        """See `Calibration`."""
        overhead_ms = self.overhead(1).total_ms
        return evenness(kernel, eager, overhead_ms=overhead_ms, slack_ms=self.noise_ms)

    def eager_alone(self, calls: int) -> list[Block]:
        """See `Calibration`."""
        blocks = super().eager_alone(calls)
        times = (each.call_ms(self.overhead(calls).total_ms) for each in blocks)
        self.eager_call_ms = min(self.eager_call_ms, *times)  # it may have been measured on a busy machine
        return blocks


def _overheads(single: Overhead, sizes: Iterable[int]) -> dict[int, Overhead]:
    """Overheads of blocks of these sizes, from that of a single call."""
    return {n: replace(single, total_ms=n * single.total_ms) for n in sizes}
