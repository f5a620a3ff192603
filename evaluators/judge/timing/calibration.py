"""What the judge process knows of times before it judges: what blocks cost besides their calls, and how long
the baseline takes. It is measured before any candidate is there to make it look larger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from evaluators.judge.runner_client import RunnerClient
from evaluators.judge.staging import Staging
from evaluators.judge.timing.evenness import Evenness
from evaluators.records.timing import Block, Overhead, Plan
from evaluators.runner.shared_buffers import SharedBuffers
from evaluators.system.channel import Channel

MUCH = 2**29
"""Bytes of a call's inputs and outputs: of less, it does not matter how the time of copying them varies."""
BESIDES_VARIES = 0.2
"""By this share. With the reference itself as candidate, blocks with 4 and 9 GB to copy took about a tenth
longer on an H200 than before it was there; the half of that time and more is taken off."""
ALONE_BLOCKS, ALONE_SINGLES = 6, 3
"""Of the baseline before a candidate is loaded, of several calls or of one. With three blocks of 256 calls of
1 us, which differ for no reason, one of 112 timed cases looked like a sabotaged baseline (H200)."""


class Calibration(ABC):
    """Of one problem on one device. Where a method asks for `calls`, they are one of `timing.block_sizes`."""

    queues: ClassVar[bool]
    """Whether the calls of a block are queued before the clock starts."""
    noise_ms: ClassVar[float]
    """By how much single times differ for no reason."""

    def __init__(
        self, eager: RunnerClient, staging: Staging, plan: Plan, overheads: Mapping[int, Overhead]
    ) -> None:
        """`eager`: the baseline, which is warm; `overheads`: what blocks cost besides, for all sizes.
        Measures the baseline's calls, on whatever is staged."""
        self._eager, self._staging = eager, staging
        capacity = staging.capacity
        self._overheads = dict(overheads)
        self._eager_room = capacity
        """Calls of the baseline's that can be queued."""
        self.eager_call_ms = 0.0
        """How long a call of the baseline takes."""
        self._time_eager(plan)

    def _time_eager(self, plan: Plan) -> None:
        calls = min(self._staging.capacity, 2)
        for _ in range(3):
            block = self._eager.block(self._staging.batch(calls))
            self.eager_call_ms = block.call_ms(self.overhead(calls).total_ms)
            calls = plan.calls(self.eager_call_ms, self._staging.capacity)

    @abstractmethod
    def connect(self, channel: Channel, buffers: SharedBuffers, pid: int) -> RunnerClient:
        """A candidate's runner, nothing loaded yet (see `RunnerClient`)."""

    @abstractmethod
    def overstates(self, calls: int) -> bool:
        """Whether such a block costs less besides than was measured when the problem was opened. A machine
        that was busy then makes it look more, and every kernel faster."""

    @abstractmethod
    def renew_overhead(self) -> None:
        """Measures anew what blocks cost besides, before a candidate is loaded: the machine may be busier
        than when the problem was opened, or less."""

    @abstractmethod
    def lower_overhead(self) -> None:
        """Takes a smaller overhead where one is seen now. A larger one is not to be trusted while a candidate
        is there: by it, the candidate would seem faster."""

    @abstractmethod
    def credible_ms(self, before_ms: Sequence[float], calls: int) -> float:
        """What a call of the baseline's blocks may take beside a kernel, see `timing.credible_ms`."""

    @abstractmethod
    def sabotage(self, before_ms: Sequence[float], beside_ms: Sequence[float], calls: int) -> str | None:
        """Why the baseline cannot have had the device for itself beside a kernel, see `timing.sabotaged`."""

    @abstractmethod
    def evenness(self, kernel: Sequence[Block], eager: Sequence[Block]) -> Evenness:
        """Of a kernel's blocks and eager's, which have alternated."""

    def overhead(self, calls: int) -> Overhead:
        """What a block of so many calls costs besides."""
        return self._overheads[calls]

    def slack_ms(self, calls: int) -> float:
        """ms that a call of a block of so many may take longer for no reason: by the clock and, where much
        is copied, by what the block costs besides, which is taken off its time and varies, too."""
        copies_much = self._eager.buffers.inputs.call_bytes + self._eager.buffers.outputs.call_bytes > MUCH
        overhead_ms = BESIDES_VARIES * self.overhead(calls).total_ms if copies_much else 0.0
        return (self.noise_ms + overhead_ms) / calls

    def eager_calls(self, plan: Plan, capacity: int) -> int:
        """Calls of the baseline's blocks where there is room for so many."""
        return min(plan.calls(self.eager_call_ms, capacity), self._eager_room)

    def eager_alone(self, calls: int) -> list[Block]:
        """Some blocks of the baseline's, while no candidate has run anything."""
        batch = self._staging.batch(calls)
        return [self._eager.block(batch) for _ in range(ALONE_BLOCKS if calls > 1 else ALONE_SINGLES)]
