"""A runner and the memory shared with it, as the judge process sees them.

Inputs are staged in the judge process's own memory. When they are shown, and between which moments a call is
timed, depends on the device: see `gpu_timing.py` and `cpu_timing.py`.
"""

from __future__ import annotations

import secrets
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from evaluators.judge.staging import Batch
from evaluators.records.evaluation import Status
from evaluators.records.timing import Block, Overhead
from evaluators.reference.inputs.weight_changes import WeightChange
from evaluators.runner.messages import (
    Change,
    Changed,
    Failed,
    HandInKept,
    HandInTimestamps,
    KeptHandedIn,
    Load,
    Loaded,
    MeasureSaved,
    Phase,
    Restore,
    Restored,
    RunnerAnswer,
    SavedMeasured,
    TimestampsHandedIn,
)
from evaluators.runner.shared_buffers import SampledOutput, SharedBuffers
from evaluators.system import process_tree
from evaluators.system.channel import Channel, ProtocolError

if TYPE_CHECKING:
    import torch

STATUSES = {
    Phase.IMPORT: Status.COMPILE_ERROR,
    Phase.RUN: Status.RUNTIME_ERROR,
    Phase.OUTPUT: Status.INCORRECT,
    Phase.DEVICE: Status.CRASHED,
    Phase.DECLINED: Status.DECLINED,
}
"""The status of a candidate that failed in a phase."""

A = TypeVar("A", bound=RunnerAnswer)


class CandidateRefused(Exception):
    """The candidate is not correct. `compiler`: it failed because torch's compiler is missing."""

    def __init__(self, status: Status, log: str, rule: str = "", *, compiler: bool = False) -> None:
        super().__init__(log)
        self.status, self.log, self.rule, self.compiler = status, log, rule, compiler


class BaselineFailed(CandidateRefused):
    """A runner of the reference failed, which ran when the problem was opened."""


class RunnerClient(ABC):
    """A runner with its shared buffers. It runs only while it executes an order; how its calls are timed
    depends on the device."""

    def __init__(self, channel: Channel, buffers: SharedBuffers, pid: int, *, ours: bool = False) -> None:
        """`channel` is that of a runner that is `ready`, `pid` its process as this one sees it. `ours`: it
        runs no candidate."""
        self._channel, self.buffers, self.pid, self._ours = channel, buffers, pid, ours
        self._family = process_tree.stop_tree(pid)
        self._stopped_at = 0.0
        """When it was last stopped, by `time.perf_counter`."""
        self.keeps = False
        """Whether its runs keep the outputs of the first call since this was set (see `RunCalls`)."""
        self.probes = False
        """Whether its module is a probe, whose outputs do not matter (see `RunCalls`)."""
        self.forward = False
        """Whether, in training, only the forward pass is run."""

    @abstractmethod
    def block(self, batch: Batch, *, stand_in: int = 0) -> Block:
        """Runs the calls of the batch in an order that cannot be predicted.

        With a positive `stand_in`, a runner of ours fills fresh outputs that many times instead of running
        its module. Raises CandidateRefused if it fails, ChannelClosed if it died.
        """

    @abstractmethod
    def overhead(self, batch: Batch) -> Overhead:
        """What a block of this batch costs in addition to its calls, measured with a runner of ours that
        fills outputs instead of running its module."""

    @abstractmethod
    def queue_room(self, batch: Batch, capacity: int) -> int:
        """After a block of this batch: how many calls can apparently be queued before a block begins, at most
        `capacity`."""

    @abstractmethod
    def sampled_output(self, calls: int) -> SampledOutput:
        """A sample of the outputs of the last block, which had `calls` calls."""

    def kept_outputs(self, call: int, *, release: bool = False) -> tuple[list[torch.Tensor], KeptHandedIn]:
        """The outputs of `call` that the runner keeps, as they are now, and the runner's report."""
        self.buffers.poison(call + 1)
        self._synchronize()
        with self._awake():
            deliver = not self.buffers.fetches
            self._channel.send(HandInKept(call=call, deliver=deliver, release=release).message())
            answer = self._answer(KeptHandedIn)
        self._synchronize()
        self._fetch(call, answer.outputs)
        return [each.clone() for each in self.buffers.output_views[call]], answer

    @abstractmethod
    def _fetch(self, call: int, addresses: list[int] | None) -> None:
        """Reads the outputs of a call at the addresses that the runner reported, unless it delivers them."""

    @abstractmethod
    def _synchronize(self) -> None:
        """Waits until the runner can see what was written to the shared buffers."""

    def load(self, order: Load) -> None:
        """Raises CandidateRefused if the module does not load, ChannelClosed if the runner died."""
        self.buffers.clear()
        self._synchronize()
        with self._awake():
            self._channel.send(order.message(), (self.buffers.fd,))
            self._answer(Loaded)

    def change_weights(
        self, how: WeightChange, forms: list[list[object]], buffers: list[list[object]]
    ) -> tuple[bool, tuple[str, ...]]:
        """Changes the loaded module's weights. Returns whether they have these forms (see
        `weight_changes.change`), and which of the buffers exist."""
        with self._awake():
            self._channel.send(Change(how=how, forms=forms, buffers=buffers).message())
            answer = self._answer(Changed)
        return answer.alike, tuple(name for name in how.buffers if name in answer.buffers)

    def restore_weights(self) -> None:
        """Restores the original weights."""
        with self._awake():
            self._channel.send(Restore().message())
            self._answer(Restored)

    def saved_bytes(self) -> int:
        """What the module's forward pass saves for the backward pass, in training."""
        with self._awake():
            self._channel.send(MeasureSaved().message())
            return self._answer(SavedMeasured).bytes

    def timestamps(self, marks: int) -> TimestampsHandedIn:
        """The timestamps of the last call of a probe with this number of marks."""
        with self._awake():
            self._channel.send(HandInTimestamps(marks=marks).message())
            return self._answer(TimestampsHandedIn)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Lets the runner run only during the order, so that it cannot look ahead or disturb others."""
        process_tree.signal_all(self._family, signal.SIGCONT)
        try:
            yield
        finally:
            self._family = process_tree.stop_tree(self.pid)
            self._stopped_at = time.perf_counter()

    def close(self) -> None:
        """Lets the runner end by itself."""
        self._channel.close()
        process_tree.signal_all(self._family, signal.SIGCONT)

    def _answer(self, expected: type[A], timeout_s: float | None = None) -> A:
        """The runner's answer to an order. Raises CandidateRefused if it is not of the expected type,
        ChannelTimeout or ChannelClosed."""
        try:
            message = self._channel.receive(timeout_s)
            if message.get("op") == expected.op:
                return expected.read(message)
        except ProtocolError as error:
            raise CandidateRefused(
                Status.REJECTED, f"the runner sent an invalid message: {error}", "forged message"
            ) from error
        if message.get("op") != Failed.op:
            raise CandidateRefused(Status.REJECTED, f"unexpected message {message!r:.200}", "forged message")
        failed = Failed.read(message)
        refused = BaselineFailed if self._ours else CandidateRefused
        raise refused(STATUSES[failed.phase], failed.error, compiler=failed.compiler)


def ready(channel: Channel) -> str:
    """Waits until a new runner is confined and ready for orders. Returns its isolation level. Raises
    ChannelClosed."""
    return str(channel.receive().get("isolation", ""))


def shuffled(calls: int) -> list[int]:
    """The numbers below `calls` in an unpredictable order."""
    order = list(range(calls))
    secrets.SystemRandom().shuffle(order)
    return order
