"""How calls are timed on a GPU: in blocks that are queued before the clock starts.

The runner queues its work behind a gate; then the clock starts, the inputs are shown and the gate opens. So
neither looking ahead nor launch latencies count.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evaluators.judge.runner_client import CandidateRefused, RunnerClient, shuffled
from evaluators.judge.staging import Batch, Staging
from evaluators.judge.timing.calibration import Calibration
from evaluators.judge.timing.evenness import Evenness, evenness
from evaluators.records.evaluation import Status
from evaluators.records.timing import (
    RESOLUTION_MS,
    SLACK_MS,
    Block,
    Overhead,
    Plan,
    block_sizes,
    credible_ms,
    fastest,
    sabotaged,
    smoothed,
)
from evaluators.runner.messages import (
    Counted,
    Done,
    HandedIn,
    HandIn,
    Load,
    MemoryReleased,
    Queued,
    RunCalls,
    TraceCalls,
)
from evaluators.runner.shared_buffers import SampledOutput, SharedBuffers
from evaluators.system.channel import Channel, ChannelTimeout

if TYPE_CHECKING:
    import torch

QUEUE_S, WAITING_S, LATE_BLOCKS = 0.1, 0.005, 3
"""How long a runner may take to queue a block before the gate opens anyway: some kernels wait for the GPU. A
candidate that was late in so many blocks on end gets less, so that judging it does not hold the GPU for long,
but for one block of RECALL_EVERY: nobody is late for good."""
RECALL_EVERY = 8
FILLING_S = 0.03
"""How long every runner has, each time, where a call of the reference has more launches than a queue holds,
about a thousand: enough to fill it. Who had less would have fewer launches queued when the clock starts."""
HUNG_FACTOR, LEAST_HUNG_S = 1000, 2.5
"""Queued work that takes so many times as long as the baseline, and as many seconds, does not end."""
SINGLES = 4
"""Blocks of one call, against which the blocks of many are held."""
CHAIN_CALLS = 32
"""Of a chain at most, so that a GPU's queue, which has room for a thousand launches, holds them all."""
LEAST_LINKS, LINKS_MS = 4, 4.0
"""By so many calls a link of a chain is measured, or by more whose blocks cost so much besides at most: large
inputs take long to stir, which a few calls tell as well as many."""
MEASURED_SIZES = frozenset(4**n for n in range(6))
"""Blocks of so many calls are measured for what a block costs besides; it grows linearly in between."""
APART = 1.5
"""The largest size is measured, too, and none that is nearer to it by this factor."""
CALIBRATIONS = 3
"""At most: a machine that is busy makes blocks cost so much besides that the baseline seems to take no
time."""
OVERSTATED = 0.9
"""Of what a block costs besides: less than that is no noise."""


class GpuRunnerClient(RunnerClient):
    """A runner whose calls are queued on a GPU."""

    def __init__(self, channel: Channel, buffers: SharedBuffers, pid: int, *, ours: bool = False) -> None:
        super().__init__(channel, buffers, pid, ours=ours)
        self.expected_ms = 0.0
        """How long a call of the baseline takes, once that is known."""
        self._sampled: SampledOutput | None = None
        self._lean, self._is_warm = False, False
        self.queued_some = False
        """Whether any block of more than one call was queued before it began."""
        self.fills_queue = False
        """Whether its blocks are to be measured with a queue that is full (see FILLING_S)."""
        self.late, self._late_blocks = False, 0
        """Whether the last block began before all of it was queued, and how many did on end."""

    @property
    def waits(self) -> bool:
        """Whether its calls seem to wait for the GPU, so that no block is queued before it begins."""
        return self._late_blocks >= LATE_BLOCKS and not self._ours

    def load(self, order: Load) -> None:
        """See `RunnerClient`."""
        self._lean = order.lean
        super().load(order)

    def block(self, batch: Batch, *, stand_in: int = 0, deliver: bool = True) -> Block:
        """See `RunnerClient`. Without `deliver` the outputs stay with the runner (see `kept_block`)."""
        return self._queued_block(
            batch, RunCalls(calls=shuffled(batch.calls), stand_in=stand_in, deliver=deliver)
        )

    def overhead(self, batch: Batch) -> Overhead:
        """See `RunnerClient`. Of each kind of block the fastest counts: noise only adds. Afterwards `late`
        says so where any of them began before all of it was queued, so that launches are in their time."""
        late = False

        def wall_ms(stand_in: int, deliver: bool = True) -> float:
            nonlocal late
            block = self.block(batch, stand_in=stand_in, deliver=deliver)
            late = late or self.late
            return block.wall_ms

        # Events between the fillings would cost time themselves: a filling is what a second one adds.
        once, twice, kept = fastest(
            [lambda: wall_ms(1), lambda: wall_ms(2), lambda: wall_ms(1, deliver=False)]
        )
        filling_ms = max(twice - once, 0.0)
        self.late = late
        return Overhead(total_ms=max(once - filling_ms, 0.0), delivery_ms=max(once - kept, 0.0))

    def chain_overhead_ms(self, batch: Batch, *, wait: bool) -> float:
        """What a block whose calls are a chain costs besides the calls, of a runner of ours that fills
        outputs instead of running its module; with `wait`, of one that waits for the GPU in every call."""

        def wall_ms(stand_in: int) -> float:
            order = RunCalls(calls=shuffled(batch.calls), stand_in=stand_in, chain=True, wait=wait)
            return self._queued_block(batch, order).wall_ms

        once, twice = fastest([lambda: wall_ms(1), lambda: wall_ms(2)])
        return max(once - max(twice - once, 0.0), 0.0)

    def kept_block(self, batch: Batch) -> tuple[Block, int, list[torch.Tensor]]:
        """A block whose outputs stay with the runner, and a call of it, nobody knew which, that is
        handed in afterwards. Its inputs are gone by then: what was not worked out cannot be made up for.
        Last what the call has left in the inputs that it was to change."""
        order = shuffled(batch.calls)
        block = self._queued_block(batch, RunCalls(calls=order, deliver=False))
        self._sampled = None  # it shows outputs that are not handed in, and takes as much memory as they
        place = secrets.randbelow(batch.calls)
        left = self.buffers.changed(order[place])
        self.buffers.hide()
        self._synchronize()
        with self._awake():
            self._channel.send(HandIn(place=place, call=order[place]).message())
            self._answer(HandedIn)
        self._synchronize()
        return block, order[place], left

    def queue_room(self, batch: Batch, capacity: int) -> int:
        """See `RunnerClient`. A queue has room for about a thousand launches. Who is late with a single call
        waits for the GPU, and may have as many as there are."""
        size = batch.calls
        while self.late and size > 1:
            size = max(n for n in block_sizes(capacity) if n <= size // 2)
            self.block(batch.first(size))
        return capacity if self.late or size == batch.calls else size

    def sampled_output(self, calls: int) -> SampledOutput:
        """See `RunnerClient`. They were taken before the clock was stopped: what the runner says of being
        done is no claim about time."""
        return self._sampled or self.buffers.sample_output(calls)

    def chain(self, batch: Batch) -> tuple[Block, list[int]]:
        """A block whose calls are a chain (see `dependent_calls.py`), and their order."""
        order = shuffled(batch.calls)
        return self._queued_block(batch, RunCalls(calls=order, chain=True)), order

    def trace(self, batch: Batch) -> list[tuple[str, int]]:
        """What the runner's trace of the device says it ran in a block: names and nanoseconds."""
        self.buffers.show(batch.memory, batch.calls)
        self._synchronize()
        with self._awake():
            self._channel.send(TraceCalls(calls=shuffled(batch.calls)).message())
            return self._answer(Counted).kernels

    def _queued_block(self, batch: Batch, order: RunCalls) -> Block:
        """All calls are queued behind the gate, then the inputs are shown and it opens."""
        calls = batch.calls
        self.buffers.rehearse_sampling(calls)
        self._synchronize()
        with self._awake():
            order = replace(order, seeds=batch.seeds, turn=self.buffers.next_turn())
            self._channel.send(order.message())
            queued = self._answer_within(self._patience_s(order), batch)
            self.late, self._is_warm = not queued, True
            self._late_blocks = self._late_blocks + 1 if self.late else 0
            self.queued_some = self.queued_some or (queued and calls > 1)
            start = time.perf_counter()
            self.buffers.show(batch.memory, calls)
            if self.late:
                self._answer(Queued)
            self._require_done(calls)
            sampled = self.buffers.sample_output(calls)
            self._synchronize()
            wall_ms = (time.perf_counter() - start) * 1e3
            if self._lean:
                self._answer(MemoryReleased)
        self._sampled = None if self._ours else sampled
        return Block(calls=calls, wall_ms=wall_ms)

    def _patience_s(self, order: RunCalls) -> float:
        """How long it may take to queue a block before the gate opens. The first has no time at all: CUDA
        loads kernels when they are launched for the first time, and that waits until the gate has opened."""
        if not self._is_warm:
            return 0.0
        if self.fills_queue:
            return FILLING_S
        impatient = order.wait or (self.waits and self._late_blocks % RECALL_EVERY)
        return WAITING_S if impatient else QUEUE_S

    def _answer_within(self, timeout_s: float, batch: Batch) -> bool:
        try:
            self._answer(Queued, timeout_s)
        except ChannelTimeout:
            return False
        except CandidateRefused:
            self.buffers.show(batch.memory, 0)  # what it has queued can end
            raise
        return True

    def _require_done(self, calls: int) -> None:
        """Waits for queued work. Raises Refused when it takes so long that it must hang."""
        limit_s = max(HUNG_FACTOR * calls * self.expected_ms / 1e3, LEAST_HUNG_S)
        try:
            self._answer(Done, limit_s if self.expected_ms else None)
        except ChannelTimeout:
            log = (
                f"{calls} calls on the GPU did not end within {limit_s:.3g} s; "
                f"the reference takes {self.expected_ms:.3g} ms for one"
            )
            raise CandidateRefused(Status.TIMEOUT, log) from None

    def _synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


class GpuCalibration(Calibration):
    """Of blocks that are queued before the clock starts."""

    queues = True
    noise_ms = SLACK_MS["cuda"]

    def __init__(self, eager: GpuRunnerClient, staging: Staging, plan: Plan, *, chains: bool) -> None:
        """See `Calibration`. `chains`: whether the reference's calls can be made to depend on one another."""
        self._drift_ms = 0.0
        """By how much a block costs more besides now than when the problem was opened."""
        capacity = staging.capacity
        sizes = block_sizes(capacity)
        super().__init__(eager, staging, plan, _overheads(eager, staging))
        for _ in range(CALIBRATIONS - 1):
            if self.eager_call_ms > RESOLUTION_MS:
                break
            self._overheads = _overheads(eager, staging)
            self._time_eager(plan)
        self.link_ms: dict[bool, float] = {}
        """What a call costs more in a chain, by whether the module waits for the GPU in every call; empty
        where there are no chains."""
        if capacity > 1 and chains:
            self.link_ms = {waits: self.measured_link_ms(waits=waits) for waits in (False, True)}
        calls = plan.calls(self.eager_call_ms, capacity)
        if calls > 1:
            longest = staging.batch(max(n for n in sizes if n <= 2 * calls))
            eager.block(longest)  # of a thorough measurement
            self._eager_room = eager.queue_room(longest, capacity)
        singles, late = [], []
        for _ in range(SINGLES):
            singles.append(eager.block(staging.batch(1)).call_ms(self.overhead(1).total_ms))
            late.append(eager.late)
        self._fills_queue = eager.fills_queue = all(late)
        self._usual_calls = self.eager_calls(plan, capacity)
        self.waking_ms = max(min(singles) - self.eager_call_ms, 0.0)
        """What a call alone takes longer than one of many."""

    def connect(self, channel: Channel, buffers: SharedBuffers, pid: int) -> GpuRunnerClient:
        """See `Calibration`."""
        client = GpuRunnerClient(channel, buffers, pid)
        client.expected_ms, client.fills_queue = self.eager_call_ms, self._fills_queue
        return client

    def overstates(self, calls: int) -> bool:
        """See `Calibration`."""
        known_ms, now_ms = self.overhead(calls).total_ms, self.overhead_again(calls).total_ms
        return now_ms < OVERSTATED * known_ms - self.noise_ms

    def overhead_again(self, calls: int) -> Overhead:
        """What such a block costs besides, measured now."""
        return self._eager.overhead(self._staging.batch(calls))

    def measured_link_ms(self, *, waits: bool) -> float:
        """What a call costs more in a chain, measured now."""
        assert isinstance(self._eager, GpuRunnerClient)
        sizes = block_sizes(min(self._staging.capacity, CHAIN_CALLS))
        calls = max(n for n in sizes if n <= LEAST_LINKS or self.overhead(n).total_ms <= LINKS_MS)
        overhead_ms = self._eager.chain_overhead_ms(self._staging.batch(calls), wait=waits)
        return (overhead_ms - self.overhead(calls).total_ms) / calls

    def overhead(self, calls: int) -> Overhead:
        """See `Calibration`. Starting and ending a block is what takes longer on a busy machine, of all sizes
        alike."""
        known = super().overhead(calls)
        return replace(known, total_ms=max(known.total_ms + self._drift_ms, known.delivery_ms))

    def renew_overhead(self) -> None:
        """See `Calibration`. On H200s whose host was busy it changed by up to 0.4 ms a block within seconds,
        1.5 us a call of blocks of 256."""
        self._drift_ms = self._drift_now_ms()

    def lower_overhead(self) -> None:
        """See `Calibration`."""
        self._drift_ms = min(self._drift_ms, self._drift_now_ms())

    def _drift_now_ms(self) -> float:
        """By how much a block of the baseline's costs more besides than when the problem was opened. What is
        known stays where not all of it was queued in time, and for blocks of a single long call."""
        if self._usual_calls == 1:
            return self._drift_ms
        assert isinstance(self._eager, GpuRunnerClient)
        now = self.overhead_again(self._usual_calls)
        late = self._eager.late
        return self._drift_ms if late else now.total_ms - super().overhead(self._usual_calls).total_ms

    def credible_ms(self, before_ms: Sequence[float], calls: int) -> float:
        """See `Calibration`."""
        return credible_ms(before_ms, self.slack_ms(calls))

    def sabotage(self, before_ms: Sequence[float], beside_ms: Sequence[float], calls: int) -> str | None:
        """See `Calibration`."""
        return sabotaged(before_ms, beside_ms, self.slack_ms(calls))

    def evenness(self, kernel: Sequence[Block], eager: Sequence[Block]) -> Evenness:
        """See `Calibration`. A block is timed as a whole."""
        return evenness(kernel, eager, overhead_ms=0.0, slack_ms=self.noise_ms)


def _overheads(eager: GpuRunnerClient, staging: Staging) -> dict[int, Overhead]:
    """Of blocks of all sizes, by those of some, as far as a queue has room for them."""
    found: dict[int, Overhead] = {}
    sizes = block_sizes(staging.capacity)
    for calls in sizes:
        if (calls in MEASURED_SIZES and APART * calls <= staging.capacity) or calls == staging.capacity:
            overhead = eager.overhead(staging.batch(calls))
            if eager.late and found:
                break
            found[calls] = overhead
    return smoothed(found, sizes)
