"""One side of a comparison, as the judge process sees it: a runner, the memory shared with it, and the clock.

Inputs are staged in the judge process's own memory. On a GPU they are shown when the clock has started and
the runner has queued its work behind a gate, so that neither looking ahead nor launch latencies count. On a
CPU they are shown one call after the other, while the runner is stopped.
"""

from __future__ import annotations

import os
import secrets
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from evaluators.evaluation import Status
from evaluators.isolation import namespaces
from evaluators.judge.stack_samples import StackSamples
from evaluators.reference.weight_changes import WeightChange
from evaluators.runner.shared_buffers import SampledOutput, SharedBuffers
from evaluators.system import process_inspection, process_tree
from evaluators.system.channel import (
    Channel,
    ChannelClosed,
    ChannelTimeout,
    Message,
    ProtocolError,
    printable,
)
from evaluators.timing import Block, Overhead, fastest

if TYPE_CHECKING:
    import torch

CPU_OVERHEADS = 30
"""Calls in which what one costs besides is looked for."""
QUEUE_S, WAITING_S, LATE_BLOCKS = 0.1, 0.005, 3
"""How long a runner may take to queue a block before the gate opens anyway: some kernels wait for the GPU. A
candidate that was late in so many blocks on end gets less, so that judging it does not hold the GPU for long,
but for one block of RECALL_EVERY: nobody is late for good."""
RECALL_EVERY = 8
FILLING_S = 0.03
"""How long every runner has, each time, where a call of the reference has more launches than a queue holds,
about a thousand: enough to fill it. Who had less would have fewer launches queued when the clock starts."""
RUN: Message = {"op": "run", "seeds": [], "stand_in": 0, "deliver": True, "chain": False, "wait": False}
HUNG_FACTOR, LEAST_HUNG_S = 1000, 2.5
"""Queued work that takes so many times as long as the baseline, and as many seconds, does not end."""


class Refused(Exception):
    """The candidate's verdict is in: it is not correct."""

    def __init__(self, status: Status, log: str, rule: str = "") -> None:
        super().__init__(log)
        self.status, self.log, self.rule = status, log, rule


class RunnerClient:
    """A runner with its shared buffers. `pid`: its process as this one sees it; `ours`: it runs no
    candidate."""

    def __init__(
        self, channel: Channel, buffers: SharedBuffers, staged: torch.Tensor, pid: int, *, ours: bool = False
    ) -> None:
        self._channel, self.buffers, self._staged, self.pid, self._ours = channel, buffers, staged, pid, ours
        self._on_gpu = buffers.memory.is_cuda
        self.expected_ms = 0.0
        """How long a call of the baseline takes, once that is known."""
        self.call_seeds: list[int] = []
        """Of torch's generator, one a call, where the reference draws numbers."""
        self.isolation = str(channel.receive().get("isolation", ""))
        self._runner = namespaces.runner_of(pid)
        self._family = process_tree.stop_tree(pid)
        self._stopped_at = self._waited_ms = 0.0
        self._stop_check = process_inspection.StopCheck()
        self._sampled: SampledOutput | None = None
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

    def load(self, order: Message) -> None:
        """Raises Refused when the module does not load, ChannelClosed when the runner died."""
        self.buffers.clear()
        self._synchronize()
        with self._awake():
            self._channel.send({"op": "load", **order}, (self.buffers.fd,))
            self._answer("loaded")

    def overhead(self, calls: int) -> Overhead:
        """What a block of so many calls costs besides the calls, of a runner of ours that fills outputs
        instead of running its module. Of each kind of block the fastest counts: noise only adds."""
        if not self._on_gpu:  # the runner has its own clock around the fillings, which is taken off
            walls = [self.block(calls, stand_in=1).wall_ms for _ in range(CPU_OVERHEADS)]
            return Overhead(total_ms=min(walls), delivery_ms=0.0)

        def wall_ms(stand_in: int, deliver: bool = True) -> float:
            return self.block(calls, stand_in=stand_in, deliver=deliver).wall_ms

        # Events between the fillings would cost time themselves: a filling is what a second one adds.
        once, twice, kept = fastest(
            [lambda: wall_ms(1), lambda: wall_ms(2), lambda: wall_ms(1, deliver=False)]
        )
        filling_ms = max(twice - once, 0.0)
        return Overhead(total_ms=max(once - filling_ms, 0.0), delivery_ms=max(once - kept, 0.0))

    def link_ms(self, calls: int, *, wait: bool) -> float:
        """On a GPU: what a call in a chain costs more than one in a block, of a runner of ours that fills
        outputs instead of running its module; with `wait`, of one that waits for the GPU in every call."""

        def wall_ms(*, chain: bool) -> float:
            order = RUN | {"stand_in": 1, "chain": chain, "wait": wait}
            return self._queued_block(order, shuffled(calls)).wall_ms

        chain_ms, block_ms = fastest([lambda: wall_ms(chain=True), lambda: wall_ms(chain=False)])
        return max(chain_ms - block_ms, 0.0) / (calls - 1)

    def change_weights(
        self, how: WeightChange, forms: list[list[object]], buffers: list[list[object]]
    ) -> tuple[bool, tuple[str, ...]]:
        """Gives the loaded module other weights. Whether they have these forms (see `weight_changes.change`),
        and which of the buffers it has."""
        with self._awake():
            order = {"op": "change", "how": asdict(how), "forms": forms, "buffers": buffers}
            self._channel.send(order)
            answer = self._answer("changed")
        known = answer.get("buffers")
        names = tuple(name for name in how.buffers if isinstance(known, list) and name in known)
        return answer.get("alike") is True, names

    def restore_weights(self) -> None:
        """Gives it back those that it had."""
        with self._awake():
            self._channel.send({"op": "restore"})
            self._answer("restored")

    def block(self, calls: int, *, stand_in: int = 0, deliver: bool = True) -> Block:
        """Runs the calls 0 to `calls` - 1 in an order that nobody knew, on what is staged.

        With `stand_in` n, a runner of ours fills fresh outputs n times instead of running its module. Without
        `deliver` the outputs stay with the runner (see `kept_block`).
        """
        order = RUN | {"stand_in": stand_in, "deliver": deliver and not self.buffers.fetches}
        if self._on_gpu:
            return self._queued_block(order, shuffled(calls))
        walls_ms, waited_ms = [], []
        for call in shuffled(calls):
            walls_ms.append(self._single_ms(order, call))
            waited_ms.append(self._waited_ms)
        return Block(
            calls=calls,
            wall_ms=statistics.median(walls_ms) * calls,
            walls_ms=tuple(walls_ms),
            waited_ms=tuple(waited_ms) if self.buffers.fetches else (),
        )

    def kept_block(self, calls: int) -> tuple[Block, int, list[torch.Tensor]]:
        """On a GPU: a block whose outputs stay with the runner, and a call of it, nobody knew which, that is
        handed in afterwards. Its inputs are gone by then: what was not worked out cannot be made up for.
        Last what the call has left in its inputs' memory, which may be its outputs'."""
        order = shuffled(calls)
        block = self._queued_block(RUN | {"deliver": False}, order)
        self._sampled = None  # it shows outputs that are not handed in, and takes as much memory as they
        place = secrets.randbelow(calls)
        left = self.buffers.overwritten(order[place])
        self.buffers.hide()
        self._synchronize()
        with self._awake():
            self._channel.send({"op": "hand in", "place": place, "call": order[place]})
            self._answer("handed in")
        self._synchronize()
        return block, order[place], left

    def sampled_output(self, calls: int) -> SampledOutput:
        """Outputs of the last block, which had so many calls. On a GPU they were taken before the
        clock was stopped: what the runner says of being done is no claim about time."""
        return self._sampled or self.buffers.sample_output(calls)

    def chain(self, calls: int) -> tuple[Block, list[int]]:
        """On a GPU: a block whose calls are a chain (see `dependent_calls.py`), and their order."""
        order = shuffled(calls)
        return self._queued_block(RUN | {"chain": True}, order), order

    def _queued_block(self, order: Message, calls: list[int]) -> Block:
        """On a GPU: all calls are queued behind the gate, then the inputs are shown and it opens."""
        self.buffers.rehearse_sampling(len(calls))
        self._synchronize()
        with self._awake():
            self._channel.send(
                order | {"calls": calls, "seeds": self.call_seeds, "turn": self.buffers.next_turn()}
            )
            queued = self._answer_within(self._patience_s(order))
            self.late = not queued
            self._late_blocks = self._late_blocks + 1 if self.late else 0
            self.queued_some = self.queued_some or (queued and len(calls) > 1)
            start = time.perf_counter()
            self.buffers.show(self._staged, len(calls))
            if self.late:
                self._answer("queued")
            self._require_done(len(calls))
            sampled = self.buffers.sample_output(len(calls))
            self._synchronize()
            wall_ms = (time.perf_counter() - start) * 1e3
        self._sampled = None if self._ours else sampled
        return Block(calls=len(calls), wall_ms=wall_ms)

    def _patience_s(self, order: Message) -> float:
        """How long it may take to queue a block before the gate opens."""
        if self.fills_queue:
            return FILLING_S
        impatient = order["wait"] or (self.waits and self._late_blocks % RECALL_EVERY)
        return WAITING_S if impatient else QUEUE_S

    def _single_ms(self, order: Message, call: int) -> float:
        """On a CPU: one call, whose inputs are shown while the runner is stopped, from before it wakes up.
        When it has stopped again, the outputs are read out of its memory: nothing that it does takes part."""
        self.buffers.show_one(self._staged, call)
        leaders = process_tree.spread_threads(self._family)
        self._require_still()
        timed = {os.getpid(), *self._family}
        waited_ns = process_inspection.waited_ns(timed)
        start = time.perf_counter()
        with self._awake():
            self._channel.send(order | {"calls": [call], "seeds": self.call_seeds})
            process_tree.allow_all_cores(leaders)
            answer = self._answer("done")
        self._waited_ms = (process_inspection.waited_ns(timed) - waited_ns) / 1e6
        wall_ms = (self._stopped_at - start) * 1e3
        if self.buffers.fetches:
            self._fetch(call, answer.get("outputs"))
        return wall_ms - (float(answer["filling_ms"]) if order["stand_in"] else 0.0)

    def watched(self, calls: list[int], stack_samples: StackSamples) -> None:
        """On a CPU: runs these calls in one go, each of which may come several times, and samples the
        runner's threads meanwhile: so a sample meets somebody at work, however late it comes."""
        for call in set(calls):
            self.buffers.show_one(self._staged, call)
        with self._awake():
            self._channel.send(RUN | {"deliver": False, "calls": calls})
            while True:
                try:
                    self._answer("done", stack_samples.delay_s())
                    return
                except ChannelTimeout:
                    stack_samples.take([self._runner, *self._family])

    def _fetch(self, call: int, addresses: Any) -> None:
        """The outputs of a call, which a stopped runner says it has at these addresses."""
        views = self.buffers.output_views[call]
        if not (isinstance(addresses, list) and [type(each) for each in addresses] == [int] * len(views)):
            raise Refused(Status.REJECTED, f"no addresses of outputs: {addresses!r:.200}", "forged message")
        try:
            for view, address in zip(views, addresses, strict=True):
                process_inspection.read_memory(
                    self._runner, address, view.data_ptr(), view.numel() * view.element_size()
                )
        except process_inspection.Unreadable as error:
            raise Refused(Status.INCORRECT, f"its output cannot be read: {error}") from error
        except ProcessLookupError as error:
            raise ChannelClosed("the runner is gone") from error
        except OSError as error:
            raise Refused(Status.REJECTED, "it does not let itself be looked into", "unobservable") from error

    def _require_still(self) -> None:
        """Raises Refused when a thread of the candidate's has run since it was stopped: signals other than
        ours can wake a process, too."""
        if not self.buffers.fetches:
            return
        ran_ns = process_inspection.run_ns({self.pid, *process_tree.descendants(self.pid)})
        if self._ours:
            return  # after as long a pause as a candidate: a core that slept longer wakes up later
        if reason := self._stop_check.broken(ran_ns):
            raise Refused(Status.REJECTED, reason, "not still")

    def trace(self, calls: int) -> list[tuple[str, int]]:
        """What the runner's trace of the device says it ran in a block: names and nanoseconds."""
        self.buffers.show(self._staged, calls)
        self._synchronize()
        with self._awake():
            self._channel.send({"op": "trace", "calls": shuffled(calls)})
            kernels = self._answer("counted").get("kernels")
        if not (isinstance(kernels, list) and all(_is_entry(each) for each in kernels)):
            raise Refused(Status.REJECTED, f"no valid trace: {kernels!r:.200}", "forged message")
        return [(printable(name), duration_ns) for name, duration_ns in kernels]

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """The runner runs only for the time of an order: it cannot look ahead, nor disturb others."""
        process_tree.signal_all(self._family, signal.SIGCONT)
        try:
            yield
        finally:
            self._family = process_tree.stop_tree(self.pid)
            self._stopped_at = time.perf_counter()
            if self.buffers.fetches:
                self._stop_check.begin(process_inspection.settled_ns(self._family))

    def close(self) -> None:
        """Lets the runner end by itself."""
        self._channel.close()
        process_tree.signal_all(self._family, signal.SIGCONT)

    def _answer_within(self, timeout_s: float) -> bool:
        try:
            self._answer("queued", timeout_s)
        except ChannelTimeout:
            return False
        except Refused:
            self.buffers.show(self._staged, 0)  # what it has queued can end
            raise
        return True

    def _require_done(self, calls: int) -> None:
        """Waits for queued work. Raises Refused when it takes so long that it must hang."""
        limit_s = max(HUNG_FACTOR * calls * self.expected_ms / 1e3, LEAST_HUNG_S)
        try:
            self._answer("done", limit_s if self.expected_ms else None)
        except ChannelTimeout:
            log = (
                f"{calls} calls on the GPU did not end within {limit_s:.3g} s; "
                f"the reference takes {self.expected_ms:.3g} ms for one"
            )
            raise Refused(Status.TIMEOUT, log) from None

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
