"""One side of a comparison, as the referee sees it: a runner, the memory shared with it, and the clock.

Inputs are staged in the referee's own memory and shown only after the clock has started; on a GPU after the
runner has queued its work behind a gate, so that neither looking ahead nor launch latencies count.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evaluators import sandbox
from evaluators.arena import ALIGNMENT, Layout, create_shared
from evaluators.channel import Channel, ChannelTimeout, Message, ProtocolError, printable
from evaluators.evaluation import Status
from evaluators.timing import Block, Overhead

if TYPE_CHECKING:
    import torch

QUEUE_S = 0.1
"""How long a runner may take to queue a block before the gate opens anyway: some kernels wait for the GPU."""


class Refused(Exception):
    """The candidate's verdict is in: it is not correct."""

    def __init__(self, status: Status, log: str, rule: str = "") -> None:
        super().__init__(log)
        self.status, self.log, self.rule = status, log, rule


class Arena:
    """Shared memory for `calls` calls: inputs, outputs, and the gate's word at the end."""

    def __init__(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], calls: int, device: str
    ) -> None:
        """Raises MemoryError when the device has no room."""
        self.inputs, self.outputs = Layout.of(inputs, calls), Layout.of(outputs, calls)
        size = self.inputs.bytes + self.outputs.bytes
        self.memory, self.description, self.fd = create_shared(size + ALIGNMENT, device)
        self.output_views = self.outputs.views(self.memory[self.inputs.bytes :])
        self._gate = gate_of(self.memory)
        self._turn = 0

    def next_turn(self) -> int:
        """The number for which the gate opens next."""
        self._turn += 1
        return self._turn

    def clear(self) -> None:
        """Forgets what the last runner left; the gate is closed."""
        self.memory.zero_()
        self._turn = 0

    def poison(self) -> None:
        """NaN (all bits one) into every output: what is not written cannot pass."""
        self.memory[self.inputs.bytes : self.inputs.bytes + self.outputs.bytes].fill_(255)

    def show(self, staged: torch.Tensor, calls: int) -> None:
        """Copies the inputs of the first `calls` calls out of private memory, then opens the gate."""
        size = calls * self.inputs.call_bytes
        self.memory[:size].copy_(staged[:size])
        if self.memory.is_cuda:
            self._gate.fill_(self._turn)


def gate_of(memory: torch.Tensor) -> torch.Tensor:
    """The word, at the end of an arena's memory, on which a runner's stream waits."""
    import torch

    return memory[-ALIGNMENT:][:4].view(torch.int32)


class Side:
    """A runner with its arena. `pid`: its process as this one sees it, 0 where it is not to be frozen."""

    def __init__(self, channel: Channel, arena: Arena, staged: torch.Tensor, pid: int = 0) -> None:
        self._channel, self.arena, self._staged, self.pid = channel, arena, staged, pid
        self._on_gpu = arena.memory.is_cuda
        self.isolation = str(channel.receive().get("isolation", ""))

    def load(self, order: Message) -> None:
        """Raises Refused when the module does not load, ChannelClosed when the runner died."""
        self.arena.clear()
        self._synchronize()
        fds = () if self.arena.fd is None else (self.arena.fd,)
        self._channel.send({"op": "load", "fds": len(fds), **order}, fds)
        self._answer("loaded")

    def overhead(self, calls: int, repeats: int = 3) -> Overhead:
        """What a block of so many calls costs besides the calls, of a runner of ours: a block that fills
        outputs once, less one filling, which is how much longer it takes to fill them twice. Of each the
        fastest counts: noise only adds."""
        once, twice, kept = (
            min(self.block(calls, stand_in=n, deliver=deliver).wall_ms for _ in range(repeats))
            for n, deliver in ((1, True), (2, True), (1, False))
        )
        return Overhead(total_ms=max(2 * once - twice, 0.0), delivery_ms=max(once - kept, 0.0))

    def scale_weights(self, factor: float) -> None:
        """Multiplies all weights of the loaded module in place."""
        self._channel.send({"op": "scale", "factor": factor})
        self._answer("scaled")

    def block(self, calls: int, *, stand_in: int = 0, deliver: bool = True) -> Block:
        """Runs the calls 0 to `calls` - 1 in an order that nobody knew, on what is staged.

        With `stand_in` n, a runner of ours fills fresh outputs n times instead of running its module. Without
        `deliver` nobody sees the outputs.
        """
        order = {"op": "run", "calls": shuffled(calls), "stand_in": stand_in, "deliver": deliver}
        self._synchronize()
        if self._on_gpu:
            self._channel.send(order | {"turn": self.arena.next_turn()})
            queued = self._answer_within(QUEUE_S)
            start = time.perf_counter()
            self.arena.show(self._staged, calls)
            if not queued:
                self._answer("queued")
        else:
            start = time.perf_counter()
            self.arena.show(self._staged, calls)
            self._channel.send(order)
        self._answer("done")
        wall_ms = (time.perf_counter() - start) * 1e3
        self._synchronize()
        return Block(calls=calls, wall_ms=wall_ms)

    def census(self, calls: int) -> list[tuple[str, int]]:
        """What the runner's trace of the device says it ran in a block: names and nanoseconds."""
        self.arena.show(self._staged, calls)
        self._synchronize()
        self._channel.send({"op": "census", "calls": shuffled(calls)})
        kernels = self._answer("counted").get("kernels")
        if not (isinstance(kernels, list) and all(_is_entry(each) for each in kernels)):
            raise Refused(Status.REJECTED, f"no valid census: {kernels!r:.200}", "forged message")
        return [(printable(name, 500), duration_ns) for name, duration_ns in kernels]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """For the time of the block, nothing of the runner's runs on a CPU."""
        if not self.pid:
            yield
            return
        sandbox.signal_tree(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            sandbox.signal_tree(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Lets the runner end by itself."""
        self._channel.close()

    def _answer_within(self, timeout_s: float) -> bool:
        try:
            self._answer("queued", timeout_s)
        except ChannelTimeout:
            return False
        except Refused:
            self.arena.show(self._staged, 0)  # what it has queued can end
            raise
        return True

    def _answer(self, expected: str, timeout_s: float | None = None) -> Message:
        try:
            answer = self._channel.receive(timeout_s)
        except ProtocolError as error:
            raise Refused(
                Status.REJECTED, f"the runner broke the protocol: {error}", "forged message"
            ) from error
        if answer.get("op") == expected:
            return answer
        if answer.get("op") != "failed":
            raise Refused(Status.REJECTED, f"unexpected message {answer!r:.200}", "forged message")
        log, kind = printable(answer.get("error", "")), answer.get("kind")
        if kind == "WrongOutput":
            raise Refused(Status.INCORRECT, log)
        phases = {"import": Status.COMPILE_ERROR, "device": Status.CRASHED}
        raise Refused(phases.get(str(answer.get("phase")), Status.RUNTIME_ERROR), log)

    def _synchronize(self) -> None:
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()


def shuffled(calls: int) -> list[int]:
    """The numbers below `calls` in an unpredictable order."""
    order = list(range(calls))
    secrets.SystemRandom().shuffle(order)
    return order


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) is int
        and 0 <= value[1] < 10**15
    )
