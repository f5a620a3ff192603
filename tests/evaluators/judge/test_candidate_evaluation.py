"""How an evaluation chooses the length of its blocks, without a device."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from evaluators.judge.candidate_evaluation import CandidateEvaluation
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.staging import Batch
from evaluators.judge.timing.paired_sampling import Samples
from evaluators.records.opening import Steps
from evaluators.records.problem import Problem
from evaluators.records.timing import Block, Effort, Plan


@dataclass
class QueueingCourt:
    """The baseline's blocks have `baseline` calls."""

    baseline: int
    device = "cuda"
    problem = Problem(name="test", source="class Model: ...", libraries="no_library")
    capacity = 256
    vendor_kernels = None
    calibration = None
    reference = SimpleNamespace(weight_forms=(), random_checks=None)
    clock = Steps()
    overhead_ms: float = 0.0

    def eager_calls(self, plan: Plan) -> int:
        return self.baseline

    def call_ms(self, block: Block) -> float:
        return block.call_ms(self.overhead_ms)

    times_ms, fair_ms = ReferenceSession.times_ms, ReferenceSession.fair_ms

    def staged(self, calls: int) -> Batch:
        return Batch(memory=torch.empty(0), calls=calls)


@dataclass
class QueueingRunner:
    """The candidate's queue has room for `room` calls."""

    room: int

    def queue_room(self, batch: Batch, capacity: int) -> int:
        return capacity if batch.calls <= self.room else self.room


@pytest.mark.parametrize(
    ("rough_ms", "call_ms", "room", "eager_calls", "expected"),
    [
        (0.05, 0.05, 256, 192, 192),
        (0.6, 0.05, 256, 192, 192),
        (0.6, 0.05, 48, 192, 48),  # a kernel that seemed short turns out to fill the queue
        (0.05, 0.05, 48, 64, 48),
        (0.1, 0.1, 256, 192, 192),
        (0.1, 0.1, 100, 192, 100),  # and so is the baseline's number, if both are about equally fast
        (1.0, 1.0, 256, 192, 12),
    ],
)
def test_a_block_has_as_many_calls_as_could_be_queued(
    monkeypatch: pytest.MonkeyPatch,
    rough_ms: float,
    call_ms: float,
    room: int,
    eager_calls: int,
    expected: int,
) -> None:
    plan, client = Plan(block_ms=9.0, precision=0.1, max_s=1), QueueingRunner(room)
    session = QueueingCourt(baseline=eager_calls)
    candidate_evaluation = CandidateEvaluation(session, client, plan, "", effort=Effort.USUAL, say=str)  # type: ignore[arg-type]
    tried: list[int] = []

    def timed_block(calls: int) -> Block:
        tried.append(calls)
        return Block(calls=calls, wall_ms=calls * call_ms)

    monkeypatch.setattr(candidate_evaluation._correctness_checks, "timed_block", timed_block)
    assert candidate_evaluation._sampling._block_calls(rough_ms) == expected
    assert expected in tried or expected == room
    assert candidate_evaluation._sampling.eager_calls <= room


def test_the_overhead_known_at_the_end_is_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was busy before: with the overhead known then, the kernel would seem six times as fast."""
    session = QueueingCourt(baseline=100, overhead_ms=0.9)
    session.too_fast = lambda *times: None  # type: ignore[attr-defined]
    plan = Plan(block_ms=9.0, precision=0.1, max_s=1)
    found = CandidateEvaluation(session, QueueingRunner(256), plan, "", effort=Effort.USUAL, say=str)  # type: ignore[arg-type]
    eager, kernel = ([Block(calls=100, wall_ms=100 * each + 0.5)] * 8 for each in (0.01, 0.005))
    samples = Samples(calls=100, kernel=kernel, eager=eager)
    monkeypatch.setattr(found._sampling, "_block_calls", lambda call_ms: 100)
    monkeypatch.setattr(found._sampling, "_sample", lambda calls: samples)
    found._sampling.before = eager
    session.calibration = SimpleNamespace(  # type: ignore[assignment]
        queues=True,
        lower_overhead=lambda: setattr(session, "overhead_ms", 0.5),
        evenness=lambda kernel, eager: SimpleNamespace(reason=None, uneven=False),
        credible_ms=lambda before_ms, calls: 1.1 * max(before_ms),
        sabotage=lambda before_ms, beside_ms, calls: None if before_ms == beside_ms[:8] else "slower",
    )
    timing = found._checked(found._sampling.measure(0.005))
    assert timing.speedup == pytest.approx(2.0)
    assert timing.eager_ms == pytest.approx(0.01)
