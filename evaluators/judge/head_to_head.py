"""Several candidates in the reference session at once, timed against one another and against eager in turns.

Each has its own runner and shared buffers, and only one of all runners runs at a time. The worker, which
watches the process whose turn it is, requests one step after another: a candidate that dies or hangs drops
out, and the others continue.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from evaluators.judge.correctness_checks import CorrectnessChecks
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import CandidateRefused, RunnerClient, ready
from evaluators.judge.timing.evenness import UNEVEN
from evaluators.records.evaluation import Stage, Status
from evaluators.records.timing import MIN_PAIRS, Block, Effort, Plan, timing_of
from evaluators.records.verdict import Verdict
from evaluators.reference.inputs import weight_changes
from evaluators.system.channel import Channel, ChannelClosed

ALIKE = 4
"""A kernel gets its own number of calls per block if that is less than the fastest kernel's divided by
this."""


@dataclass(frozen=True, kw_only=True)
class RoundStep:
    """`run` returns whether the candidate has failed, and raises ChannelClosed if its runner died.
    `candidate` is the index of the one that runs; None if only the baseline does."""

    candidate: int | None
    run: Callable[[], bool]


@dataclass
class Contender:
    """One candidate, its checks and its samples, one per round."""

    number: int
    client: RunnerClient
    correctness_checks: CorrectnessChecks
    moments: Iterator[bool] = field(default_factory=weight_changes.moments)
    call_ms: float = 0.0
    calls: int = 1
    blocks: list[Block] = field(default_factory=list)
    verdict: Verdict | None = None
    """Set once it has failed."""


class HeadToHead:
    """Compares candidates that are evaluated separately, too, before or afterwards. Those checks are made in
    short (own inputs, changed weights, distributions, spot checks of timed calls), but not the timing checks
    on a GPU."""

    def __init__(
        self,
        session: ReferenceSession,
        channels: list[Channel],
        pids: list[int],
        plan: Plan,
        effort: Effort,
    ) -> None:
        """`channels` and `pids` are those of the candidates' runners. If the device has no room for all at
        once, only the first ones are compared."""
        self._session = session
        self._stack = ExitStack()
        room = session.memory.most_candidates(session.capacity, len(pids))
        compared = 0 if room < min(2, len(pids)) else room
        self._left_out = [_no_room(room)] * (len(pids) - compared)
        for each in channels[compared:]:
            each.close()
        buffer_sets = self._stack.enter_context(session.buffer_sets(compared)) if compared else []
        ends = zip(channels[:compared], pids[:compared], buffer_sets, strict=True)
        with session.clock.step(Stage.STARTING):
            for each in channels[:compared]:
                ready(each)
        clients = [session.candidate(*each) for each in ends]
        self._plan = plan.on(session.device).lengthened((len(clients) + 1) / 2)
        self._entries = [
            Contender(number=number, client=each, correctness_checks=CorrectnessChecks(session, each, effort))
            for number, each in enumerate(clients)
        ]
        self._before: list[Block] = []
        self._eager: list[Block] = []
        self._eager_calls = session.eager_calls(self._plan)
        self._room = session.capacity
        """Calls that every contender can queue: none may gain by short blocks."""
        self.steps: Iterator[RoundStep] = self._steps()
        """The steps to execute in order."""

    @property
    def alive(self) -> list[Contender]:
        """The contenders that have not failed."""
        return [each for each in self._entries if each.verdict is None]

    def _steps(self) -> Iterator[RoundStep]:
        if self._entries:
            yield RoundStep(candidate=None, run=self._before_any)
        for each in self.alive:
            yield self._step(each, self._enter)
        for _ in range(2):  # the first determines the number of calls, which is then tried
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
            yield self._step(each, lambda entry: entry.correctness_checks.change_some_weights())
        if self.alive:
            yield RoundStep(candidate=None, run=self._lower_overhead)

    def verdicts(self) -> list[Verdict]:
        """The verdicts in the order of the candidates; each has the same share of every stage's seconds.
        Raises RuntimeError if something has slowed the baseline down, because it is unknown which of them
        did."""
        if self.alive:
            before, alongside = map(self._session.times_ms, (self._before, self._eager))
            if reason := self._session.calibration.sabotage(before, alongside, self._eager_calls):
                raise RuntimeError(f"while several kernels were compared: {reason}")
        found = [*(each.verdict or self._judged(each) for each in self._entries), *self._left_out]
        shares = {stage: s / len(found) for stage, s in self._session.clock.seconds().items()}
        return [replace(each, stages_s=shares) for each in found]

    def close(self) -> None:
        """Lets the runners end, and frees their memory."""
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
        """A candidate that fails in the step drops out. MemoryError and OutOfMemoryError are raised, because
        it is unknown which candidate is at fault if memory to check it is lacking."""

        def run() -> bool:
            try:
                what(entry)
            except CandidateRefused as refused:
                entry.verdict = Verdict(status=refused.status, log=refused.log, rule=refused.rule)
            except ChannelClosed:
                # The worker finds out how.
                entry.verdict = Verdict(status=Status.CRASHED, log="its runner died")
                entry.client.close()  # what waits for the dead runner is stopped
                raise
            finally:
                self._session.reference.restore_weights()
            return entry.verdict is not None

        return RoundStep(candidate=entry.number, run=run)

    def _before_any(self) -> bool:
        self._before = self._session.eager_alone(self._plan)
        return False

    def _lower_overhead(self) -> bool:
        self._session.calibration.lower_overhead()
        return False

    def _enter(self, entry: Contender) -> None:
        with self._session.clock.step(Stage.LOADING):
            self._session.load(entry.client)
        with self._session.clock.step(Stage.CHECKING):
            entry.call_ms = entry.correctness_checks.begin(self._plan)

    def _share_out(self) -> None:
        """Uses the same number of calls for all blocks, eager's too, that are about equally fast, so that
        they have the same overhead."""
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
        """A warm-up block, which shows how long a call takes in one."""
        with self._session.clock.step(Stage.TIMING):
            entry.call_ms = self._session.call_ms(entry.correctness_checks.timed_block(entry.calls))
        entry.correctness_checks.settle()
        room = entry.client.queue_room(self._session.staged(entry.calls), self._session.capacity)
        self._room = min(self._room, room)

    def _order(self) -> Iterator[list[Contender | None]]:
        """The order of each round: a random one, then its reverse, so that drift affects all alike."""
        while True:
            order: list[Contender | None] = [None, *self.alive]
            secrets.SystemRandom().shuffle(order)
            yield order
            yield order[::-1]

    def _block(self, entry: Contender) -> None:
        with self._session.clock.step(Stage.TIMING):
            entry.blocks.append(entry.correctness_checks.timed_block(entry.calls))

    def _eager_block(self) -> bool:
        with self._session.clock.step(Stage.TIMING):
            self._eager.append(self._session.baseline_block(self._session.eager, self._eager_calls))
        return False

    def _check(self, entry: Contender) -> None:
        entry.correctness_checks.settle()
        if next(entry.moments):
            entry.correctness_checks.change_some_weights()

    def _enough(self, elapsed_s: float) -> bool:
        """Whether the fastest is distinguished from every other, and from eager, as precisely as the plan
        requires."""
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
