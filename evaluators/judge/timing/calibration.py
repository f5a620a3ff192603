"""What the judge process knows about times before it judges: the overhead of blocks, and how long the
baseline takes.

It is measured before any candidate runs that could inflate it. The overhead of a block is what it costs in
addition to its calls.
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

LARGE_BYTES = 2**29
"""Bytes of a call's inputs and outputs below which variations in the time to copy them do not matter."""
OVERHEAD_VARIES = 0.2
"""Share by which the overhead varies. With the reference itself as the candidate, blocks with 4 and 9 GB to
copy took about a tenth longer on an H200 than before it was loaded; half of their time or more is
overhead."""
ALONE_BLOCKS, ALONE_SINGLES = 6, 3
"""Blocks of the baseline before a candidate is loaded, with several calls or with one. With three blocks of
256 calls of 1 µs, whose times vary randomly, the baseline of one of 112 timed cases seemed sabotaged
(H200)."""


class Calibration(ABC):
    """Of one problem on one device. Arguments named `calls` are one of `timing.block_sizes`."""

    queues: ClassVar[bool]
    """Whether the calls of a block are queued before the clock starts."""
    noise_ms: ClassVar[float]
    """Random variation of single times."""

    def __init__(
        self, eager: RunnerClient, staging: Staging, plan: Plan, overheads: Mapping[int, Overhead]
    ) -> None:
        """`eager` is the warm baseline; `overheads` are the overheads of blocks of all sizes. Measures the
        baseline's calls on whatever is staged."""
        self._eager, self._staging = eager, staging
        capacity = staging.capacity
        self._overheads = dict(overheads)
        self._eager_room = capacity
        """Calls of the baseline that can be queued."""
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
        """A client for a candidate's runner with nothing loaded (see `RunnerClient`)."""

    @abstractmethod
    def overstates(self, calls: int) -> bool:
        """Whether the overhead of such a block is now lower than measured when the problem was opened. An
        overhead measured on a busy machine is too high and makes every kernel seem faster."""

    @abstractmethod
    def renew_overhead(self) -> None:
        """Measures the overhead again before a candidate is loaded, because the machine's load may have
        changed."""

    @abstractmethod
    def lower_overhead(self) -> None:
        """Adopts a smaller overhead if there is one now. A larger one is not trusted while a candidate is
        loaded, because it would make the candidate seem faster."""

    @abstractmethod
    def credible_ms(self, before_ms: Sequence[float], calls: int) -> float:
        """The longest credible time of a call in the baseline's blocks next to a kernel, see
        `timing.credible_ms`."""

    @abstractmethod
    def sabotage(self, before_ms: Sequence[float], alongside_ms: Sequence[float], calls: int) -> str | None:
        """Why the baseline cannot have had the device to itself next to a kernel, see `timing.sabotaged`."""

    @abstractmethod
    def evenness(self, kernel: Sequence[Block], eager: Sequence[Block]) -> Evenness:
        """The evenness of a kernel's blocks, which have alternated with eager's."""

    def overhead(self, calls: int) -> Overhead:
        """The overhead of a block of `calls` calls."""
        return self._overheads[calls]

    def slack_ms(self, calls: int) -> float:
        """ms by which a call in a block of `calls` calls may randomly take longer: by the clock and, if much
        is copied, by the block's overhead, which is subtracted and varies too."""
        overhead_ms = OVERHEAD_VARIES * self.overhead(calls).total_ms if self._copies_much else 0.0
        return (self.noise_ms + overhead_ms) / calls

    @property
    def _copies_much(self) -> bool:
        """See LARGE_BYTES."""
        buffers = self._eager.buffers
        return buffers.inputs.call_bytes + buffers.outputs.call_bytes > LARGE_BYTES

    def baseline_slack_ms(self, calls: int) -> float:
        """ms by which a call of the baseline may take longer in such a block than in its usual ones."""
        return self.slack_ms(calls)

    def learn_short_blocks(self, before_ms: Sequence[float], calls: int) -> None:  # noqa: B027
        """Measures how much longer a call of the baseline takes in blocks of `calls` calls than `before_ms`,
        while no candidate runs, for `baseline_slack_ms`. Nothing to measure where blocks are of one kind."""

    def eager_calls(self, plan: Plan, capacity: int) -> int:
        """Calls per block of the baseline if there is room for `capacity`."""
        return min(plan.calls(self.eager_call_ms, capacity), self._eager_room)

    def eager_alone(self, calls: int) -> list[Block]:
        """Some blocks of the baseline while no candidate has run anything."""
        batch = self._staging.batch(calls)
        return [self._eager.block(batch) for _ in range(ALONE_BLOCKS if calls > 1 else ALONE_SINGLES)]
