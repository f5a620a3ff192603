"""Several candidates before the reference session at once, timed against one another and against eager, in
turns.

Each has a runner and shared buffers of its own, and only one of all runners runs at a time. The worker, which
watches the process whose turn it is, asks for one step after the other: a candidate that dies or hangs drops
out, and the others go on.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from evaluators.judge.correctness_checks import CorrectnessChecks
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import CandidateRefused, RunnerClient, ready
from evaluators.judge.timing.evenness import UNEVEN
from evaluators.records.evaluation import Status
from evaluators.records.timing import (
    MIN_PAIRS,
    Block,
    Plan,
    timing_of,
)
from evaluators.records.verdict import Verdict
from evaluators.reference.inputs import weight_changes
from evaluators.system.channel import Channel, ChannelClosed

ALIKE = 4
"""Kernels whose blocks would have so many times fewer calls than the fastest's have their own number."""


@dataclass(frozen=True, kw_only=True)
class RoundStep:
    """`run` says whether the candidate has failed, and raises ChannelClosed when its runner died.
    `candidate`: the number of the one that runs; None where only the baseline does."""

    candidate: int | None
    run: Callable[[], bool]


@dataclass
class Contender:
    """One candidate, its checks and its samples, one a round."""

    number: int
    client: RunnerClient
    correctness_checks: CorrectnessChecks
    moments: Iterator[bool] = field(default_factory=weight_changes.moments)
    call_ms: float = 0.0
    calls: int = 1
    blocks: list[Block] = field(default_factory=list)
    verdict: Verdict | None = None
    """Of one that has failed."""


class HeadToHead:
    """Candidates whose own evaluations came before: what those found is asked again in short (own inputs,
    changed weights, distributions, spot checks of timed calls), timing checks on a GPU are not."""

    def __init__(
        self, session: ReferenceSession, channels: list[Channel], pids: list[int], plan: Plan
    ) -> None:
        """`channels` and `pids`: of the candidates' runners. Where the device has not room for all at once,
        the first of them are compared."""
        self._session = session
        self._stack = ExitStack()
        room = session.memory.most_candidates(session.capacity, len(pids))
        compared = 0 if room < min(2, len(pids)) else room
        self._left_out = [_no_room(room)] * (len(pids) - compared)
        for each in channels[compared:]:
            each.close()
        buffer_sets = self._stack.enter_context(session.buffer_sets(compared)) if compared else []
        ends = zip(channels[:compared], pids[:compared], buffer_sets, strict=True)
        for each in channels[:compared]:
            ready(each)
        clients = [session.candidate(*each) for each in ends]
        self._plan = plan.on(session.device).lengthened((len(clients) + 1) / 2)
        self._entries = [
            Contender(number=number, client=client, correctness_checks=CorrectnessChecks(session, client))
            for number, client in enumerate(clients)
        ]
        self._before: list[Block] = []
        self._eager: list[Block] = []
        self._eager_calls = session.eager_calls(self._plan)
        self._room = session.capacity
        """Calls that everybody can queue: nobody gains by being measured in short blocks."""
        self.steps: Iterator[RoundStep] = self._steps()
        """What is to be done, one after the other."""

    @property
    def alive(self) -> list[Contender]:
        """Those that have not failed."""
        return [each for each in self._entries if each.verdict is None]

    def _steps(self) -> Iterator[RoundStep]:
        if self._entries:
            yield RoundStep(candidate=None, run=self._before_any)
        for each in self.alive:
            yield self._step(each, self._enter)
        for _ in range(2):  # the first tells how many calls, which are then tried
            self._share_out()
            for each in self.alive:
                yield self._step(each, self._try_block)
        self._share_out()
        start, order = time.monotonic(), self._order()
        while self.alive and not self._enough(time.monotonic() - start):
            for entry in next(order):
                if entry is None:
                    yield RoundStep(candidate=None, run=self._eager_block)
                elif entry.verdict is None:
                    yield self._step(entry, self._block)
            for each in self.alive:
                yield self._step(each, self._check)
        for each in self.alive:
            yield self._step(each, self._check_last)
        if self.alive:
            yield RoundStep(candidate=None, run=self._lower_overhead)

    def verdicts(self) -> list[Verdict]:
        """One a candidate, in order. Raises RuntimeError where something has slowed the baseline down: nobody
        knows which of them."""
        if self.alive:
            before, beside = map(self._session.times_ms, (self._before, self._eager))
            if reason := self._session.calibration.sabotage(before, beside, self._eager_calls):
                raise RuntimeError(f"with several kernels there: {reason}")
        return [*(each.verdict or self._judged(each) for each in self._entries), *self._left_out]

    def close(self) -> None:
        """Lets the runners end, and gives their memory back."""
        for each in self._entries:
            each.client.close()
        self._stack.close()

    def _judged(self, entry: Contender) -> Verdict:
        calibration = self._session.calibration
        eager = self._session.fair_ms(self._before, self._eager)
        remarks: list[str] = []
        status, rule = Status.CORRECT, ""
        even = calibration.evenness(entry.blocks, self._eager)
        samples_ms = self._session.times_ms(entry.blocks)
        if even.uneven:
            remarks.append(f"{even.remark}: it is timed by their mean")
            samples_ms = [even.factor * each for each in samples_ms]
        log = "\n".join(remarks)
        timing = timing_of(samples_ms, eager)
        if reason := even.reason:
            status, log, rule = Status.REJECTED, reason, UNEVEN
        elif reason := self._session.too_fast(timing.kernel_ms, timing.eager_ms, entry.calls):
            status, log, rule = Status.REJECTED, reason, "roofline"
        return Verdict(
            status=status,
            log=log,
            rule=rule,
            timing=timing if status is Status.CORRECT else None,
            correctness=entry.correctness_checks.correctness(),
            roofline=self._session.limits.roofline(),
        )

    def _step(self, entry: Contender, what: Callable[[Contender], None]) -> RoundStep:
        """A candidate that fails in it drops out. Where memory is lacking to check it, nobody knows by whose
        fault, and that is raised: MemoryError, OutOfMemoryError."""

        def run() -> bool:
            try:
                what(entry)
            except CandidateRefused as refused:
                self._drop(entry, refused.status, refused.log, refused.rule)
            except ChannelClosed:
                self._drop(entry, Status.CRASHED, "its runner died")  # how, the worker finds out
                entry.client.close()  # whoever waits for the dead one is stopped
                raise
            finally:
                self._session.reference.restore_weights()
            return entry.verdict is not None

        return RoundStep(candidate=entry.number, run=run)

    def _drop(self, entry: Contender, status: Status, log: str, rule: str = "") -> None:
        entry.verdict = Verdict(status=status, log=log, rule=rule)

    def _before_any(self) -> bool:
        calibration = self._session.calibration
        calibration.renew_overhead()
        self._before = calibration.eager_alone(self._session.eager_calls(self._plan))
        return False

    def _lower_overhead(self) -> bool:
        self._session.calibration.lower_overhead()
        return False

    def _enter(self, entry: Contender) -> None:
        self._session.load(entry.client)
        entry.call_ms = entry.correctness_checks.begin(self._plan)

    def _share_out(self) -> None:
        """As many calls for all blocks, eager's too, where they are about as fast, so that what blocks cost
        besides is the same."""
        if not self.alive:
            return
        wanted = [
            min(self._plan.calls(each.call_ms, self._session.capacity), self._room) for each in self.alive
        ]
        most = max(wanted)

        def shared(own: int) -> int:
            return most if ALIKE * own >= most else own

        for each, own in zip(self.alive, wanted, strict=True):
            each.calls = shared(own)
        self._eager_calls = shared(min(self._session.eager_calls(self._plan), self._room))

    def _try_block(self, entry: Contender) -> None:
        """A block to warm up, which tells how long a call takes in one."""
        entry.call_ms = self._session.call_ms(entry.correctness_checks.timed_block(entry.calls))
        entry.correctness_checks.settle()
        room = entry.client.queue_room(self._session.staged(entry.calls), self._session.capacity)
        self._room = min(self._room, room)

    def _order(self) -> Iterator[list[Contender | None]]:
        """Who is measured in which order, round after round: a random one, then the same backwards, so that
        drift meets all alike."""
        while True:
            order: list[Contender | None] = [None, *self.alive]
            secrets.SystemRandom().shuffle(order)
            yield order
            yield order[::-1]

    def _block(self, entry: Contender) -> None:
        entry.blocks.append(entry.correctness_checks.timed_block(entry.calls))

    def _eager_block(self) -> bool:
        self._eager.append(self._session.baseline_block(self._session.eager, self._eager_calls))
        return False

    def _check(self, entry: Contender) -> None:
        entry.correctness_checks.settle()
        if next(entry.moments):
            entry.correctness_checks.change_some_weights()

    def _check_last(self, entry: Contender) -> None:
        entry.correctness_checks.change_some_weights()

    def _enough(self, elapsed_s: float) -> bool:
        """Whether the fastest is told from every other, and from eager, as well as the plan asks."""
        alive = self.alive
        if self._plan.may_go_on(len(self._eager), elapsed_s) and len(self._eager) >= MIN_PAIRS:
            seen = (self._session.calibration.evenness(each.blocks, self._eager) for each in alive)
            if any(each.undecided for each in seen):
                return False
        times = {each.number: self._session.times_ms(each.blocks) for each in alive}
        leader = min(times, key=lambda number: statistics.median(times[number] or [0.0]))
        fastest = times.pop(leader)
        return all(
            self._plan.enough([b / a for a, b in zip(fastest, other, strict=True)], elapsed_s)
            for other in [self._session.times_ms(self._eager), *times.values()]
        )


def _no_room(room: int) -> Verdict:
    log = f"the device's memory has room for {room} of these kernels at once"
    return Verdict(status=Status.INFRASTRUCTURE_ERROR, log=log)
