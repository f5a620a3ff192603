"""How calls are timed on a GPU: in blocks that are queued before the clock starts.

The runner queues its work behind a gate. Then the clock starts, the inputs are shown and the gate opens, so
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
from evaluators.judge.timing.calibration import OVERHEAD_VARIES, Calibration
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
"""How long a runner may take to queue a block before the gate opens anyway, because some kernels wait for the
GPU. After this many late blocks in a row a candidate gets less time, so that judging it does not occupy the
GPU for long, except in one block of RECALL_EVERY, in which it may catch up."""
RECALL_EVERY = 8
FILLING_S = 0.03
"""How long every runner gets each time if a call of the reference has more launches than a queue's about one
thousand: enough to fill the queue. With less time, fewer launches would be queued when the clock starts."""
HUNG_FACTOR, LEAST_HUNG_S = 1000, 2.5
"""Queued work hangs if it takes this many times as long as the baseline, and at least this many seconds."""
SINGLES = 4
"""Blocks of one call, to compare with blocks of many."""
CHAIN_CALLS = 32
"""Longest chain, so that a GPU's queue, which has room for a thousand launches, holds all of it."""
LEAST_LINKS, LINKS_MS = 4, 4.0
"""A link of a chain is measured with this many calls, or with more if their blocks' overhead stays below this
many ms: large inputs take long to stir, and a few calls show that as well as many."""
MEASURED_SIZES = frozenset(4**n for n in range(6))
"""Block sizes whose overhead is measured; it grows linearly in between."""
APART = 1.5
"""The largest size is measured too, and no other size within this factor of it."""
CALIBRATIONS = 3
"""Calibrations at most: on a busy machine the overhead of blocks is so large that the baseline seems to take
no time."""
OVERSTATED = 0.9
"""An overhead below this share of the known one is not noise."""


class GpuRunnerClient(RunnerClient):
    """A runner whose calls are queued on a GPU."""

    def __init__(self, channel: Channel, buffers: SharedBuffers, pid: int, *, ours: bool = False) -> None:
        super().__init__(channel, buffers, pid, ours=ours)
        self.expected_ms = 0.0
        """How long a call of the baseline takes, once known."""
        self._sampled: SampledOutput | None = None
        self._lean, self._is_warm = False, False
        self.queued_some = False
        """Whether any block of more than one call was queued before it began."""
        self.fills_queue = False
        """Whether its blocks are measured with a full queue (see FILLING_S)."""
        self.late, self._late_blocks = False, 0
        """Whether the last block began before all of it was queued, and how many in a row did."""

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
        """See `RunnerClient`. The fastest block of each kind counts, because noise only adds. Afterwards
        `late` says whether any of them began before all of it was queued, so that its time contains
        launches."""
        late = False

        def wall_ms(stand_in: int, deliver: bool = True) -> float:
            nonlocal late
            block = self.block(batch, stand_in=stand_in, deliver=deliver)
            late = late or self.late
            return block.wall_ms

        # Events between the fillings would themselves take time, so the time of a filling is what a second
        # one adds.
        once, twice, kept = fastest(
            [lambda: wall_ms(1), lambda: wall_ms(2), lambda: wall_ms(1, deliver=False)]
        )
        filling_ms = max(twice - once, 0.0)
        self.late = late
        return Overhead(total_ms=max(once - filling_ms, 0.0), delivery_ms=max(once - kept, 0.0))

    def chain_overhead_ms(self, batch: Batch, *, wait: bool) -> float:
        """Overhead of a block whose calls form a chain, measured with a runner of ours that fills outputs
        instead of running its module, and with `wait` waits for the GPU in every call."""

        def wall_ms(stand_in: int) -> float:
            order = RunCalls(calls=shuffled(batch.calls), stand_in=stand_in, chain=True, wait=wait)
            return self._queued_block(batch, order).wall_ms

        once, twice = fastest([lambda: wall_ms(1), lambda: wall_ms(2)])
        return max(once - max(twice - once, 0.0), 0.0)

    def kept_block(self, batch: Batch) -> tuple[Block, int, list[torch.Tensor]]:
        """A block whose outputs stay with the runner. Returns the block, a randomly chosen call of it that is
        handed in afterwards, and what that call left in the inputs that it had to change. The inputs are
        erased before the hand-in, so work that was left out cannot be made up for."""
        order = shuffled(batch.calls)
        block = self._queued_block(batch, RunCalls(calls=order, deliver=False))
        self._sampled = None  # a sample of outputs that are not handed in, as large as they are
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
        """See `RunnerClient`. A queue has room for about a thousand launches. A kernel that is late even with
        a single call waits for the GPU, and may use all calls."""
        size = batch.calls
        while self.late and size > 1:
            size = max(n for n in block_sizes(capacity) if n <= size // 2)
            self.block(batch.first(size))
        return capacity if self.late or size == batch.calls else size

    def sampled_output(self, calls: int) -> SampledOutput:
        """See `RunnerClient`. The sample was taken before the clock stopped, so the runner's report of being
        done does not influence the time."""
        return self._sampled or self.buffers.sample_output(calls)

    def chain(self, batch: Batch) -> tuple[Block, list[int]]:
        """A block whose calls form a chain (see `dependent_calls.py`), and their order."""
        order = shuffled(batch.calls)
        return self._queued_block(batch, RunCalls(calls=order, chain=True)), order

    def trace(self, batch: Batch) -> list[tuple[str, int]]:
        """The kernels of a block according to the runner's trace of the device: names and nanoseconds."""
        self.buffers.show(batch.memory, batch.calls)
        self._synchronize()
        with self._awake():
            self._channel.send(TraceCalls(calls=shuffled(batch.calls)).message())
            return self._answer(Counted).kernels

    def _queued_block(self, batch: Batch, order: RunCalls) -> Block:
        """Queues all calls behind the gate, then shows the inputs and opens the gate."""
        calls = batch.calls
        self.buffers.rehearse_sampling(calls)
        self._synchronize()
        with self._awake():
            order = replace(
                order,
                seeds=batch.seeds,
                turn=self.buffers.next_turn(),
                keep=self.keeps,
                probe=self.probes,
                forward=self.forward,
            )
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
        """How long queueing a block may take before the gate opens. The first block gets no time: CUDA loads
        kernels at their first launch, which waits until the gate has opened."""
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
            self.buffers.show(batch.memory, 0)  # so that what it has queued can finish
            raise
        return True

    def _require_done(self, calls: int) -> None:
        """Waits for queued work. Raises CandidateRefused if it takes so long that it must hang."""
        limit_s = max(HUNG_FACTOR * calls * self.expected_ms / 1e3, LEAST_HUNG_S)
        try:
            self._answer(Done, limit_s if self.expected_ms else None)
        except ChannelTimeout:
            log = (
                f"{calls} calls on the GPU did not end within {limit_s:.3g} s; "
                f"the reference takes {self.expected_ms:.3g} ms for one"
            )
            raise CandidateRefused(Status.TIMEOUT, log) from None

    def _fetch(self, call: int, addresses: list[int] | None) -> None:
        """See `RunnerClient`. They are always delivered."""

    def _synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


class GpuCalibration(Calibration):
    """For blocks that are queued before the clock starts."""

    queues = True
    noise_ms = SLACK_MS["cuda"]

    def __init__(self, eager: GpuRunnerClient, staging: Staging, plan: Plan, *, chains: bool) -> None:
        """See `Calibration`. `chains`: whether the reference's calls can be made to depend on one another."""
        self._drift_ms = 0.0
        """How much the overhead of a block has grown since the problem was opened."""
        capacity = staging.capacity
        sizes = block_sizes(capacity)
        super().__init__(eager, staging, plan, _overheads(eager, staging))
        for _ in range(CALIBRATIONS - 1):
            if self.eager_call_ms > RESOLUTION_MS:
                break
            self._overheads = _overheads(eager, staging)
            self._time_eager(plan)
        self.link_ms: dict[bool, float] = {}
        """Extra cost of a call in a chain, by whether the module waits for the GPU in every call; empty
        without chains."""
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
        """How much longer a single call takes than one of many."""
        self._short_block_ms = self.waking_ms
        """By how much a block of one call may be longer than a usual one's share."""

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
        """The overhead of such a block, measured now."""
        return self._eager.overhead(self._staging.batch(calls))

    def measured_link_ms(self, *, waits: bool) -> float:
        """The extra cost of a call in a chain, measured now."""
        assert isinstance(self._eager, GpuRunnerClient)
        sizes = block_sizes(min(self._staging.capacity, CHAIN_CALLS))
        calls = max(n for n in sizes if n <= LEAST_LINKS or self.overhead(n).total_ms <= LINKS_MS)
        overhead_ms = self._eager.chain_overhead_ms(self._staging.batch(calls), wait=waits)
        return (overhead_ms - self.overhead(calls).total_ms) / calls

    def chain_slack_ms(self, link_ms: float) -> float:
        """ms by which a call in a chain may take longer than its link of `link_ms` explains: by the clock's
        noise and, if inputs are large, by how much the time to change them varies."""
        return self.noise_ms + (OVERHEAD_VARIES * link_ms if self._copies_much else 0.0)

    def overhead(self, calls: int) -> Overhead:
        """See `Calibration`. On a busy machine starting and ending a block takes longer, equally for all
        sizes."""
        known = super().overhead(calls)
        return replace(known, total_ms=max(known.total_ms + self._drift_ms, known.delivery_ms))

    def renew_overhead(self) -> None:
        """See `Calibration`. On H200s with a busy host it changed by up to 0.4 ms per block within seconds:
        1.5 µs per call in blocks of 256."""
        self._drift_ms = self._drift_now_ms()

    def lower_overhead(self) -> None:
        """See `Calibration`."""
        self._drift_ms = min(self._drift_ms, self._drift_now_ms())

    def _drift_now_ms(self) -> float:
        """How much the overhead of the baseline's blocks has grown since the problem was opened. The known
        value stays if not all of the block was queued in time, and for blocks of a single long call."""
        if self._usual_calls == 1:
            return self._drift_ms
        assert isinstance(self._eager, GpuRunnerClient)
        now = self.overhead_again(self._usual_calls)
        late = self._eager.late
        return self._drift_ms if late else now.total_ms - super().overhead(self._usual_calls).total_ms

    def credible_ms(self, before_ms: Sequence[float], calls: int) -> float:
        """See `Calibration`."""
        return credible_ms(before_ms, self.baseline_slack_ms(calls))

    def sabotage(self, before_ms: Sequence[float], alongside_ms: Sequence[float], calls: int) -> str | None:
        """See `Calibration`."""
        return sabotaged(before_ms, alongside_ms, self.baseline_slack_ms(calls))

    def baseline_slack_ms(self, calls: int) -> float:
        """See `Calibration`. Next to a kernel of hundreds of launches the baseline's blocks are short, and
        fewer calls share the time in which the GPU wakes up."""
        return self.slack_ms(calls) + self._short_block_ms * self._shortness(calls)

    def learn_short_blocks(self, before_ms: Sequence[float], calls: int) -> None:
        """See `Calibration`. `waking_ms` is the least that was seen; after a pause it can be more."""
        if shortness := self._shortness(calls):
            overhead_ms = self.overhead(calls).total_ms
            longest_ms = max(block.call_ms(overhead_ms) for block in self.eager_alone(calls))
            self._short_block_ms = max(self._short_block_ms, (longest_ms - max(before_ms)) / shortness)

    def _shortness(self, calls: int) -> float:
        """The share of a block's waking that a call bears beyond its share in a usual block."""
        return max(1 / calls - 1 / self._usual_calls, 0.0)

    def evenness(self, kernel: Sequence[Block], eager: Sequence[Block]) -> Evenness:
        """See `Calibration`. A block is timed as a whole."""
        return evenness(kernel, eager, overhead_ms=0.0, slack_ms=self.noise_ms)


def _overheads(eager: GpuRunnerClient, staging: Staging) -> dict[int, Overhead]:
    """Overheads of blocks of all sizes, from those of some sizes, as far as a queue has room for them."""
    found: dict[int, Overhead] = {}
    sizes = block_sizes(staging.capacity)
    for calls in sizes:
        if (calls in MEASURED_SIZES and APART * calls <= staging.capacity) or calls == staging.capacity:
            overhead = eager.overhead(staging.batch(calls))
            if eager.late and found:
                break
            found[calls] = overhead
    return smoothed(found, sizes)
