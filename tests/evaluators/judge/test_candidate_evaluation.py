"""How an evaluation chooses the length of its blocks, without a device."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from evaluators.judge.candidate_evaluation import CandidateEvaluation
from evaluators.judge.staging import Batch
from evaluators.problem import Problem
from evaluators.timing import Plan


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

    def eager_calls(self, plan: Plan) -> int:
        return self.baseline

    def staged(self, calls: int) -> Batch:
        return Batch(memory=torch.empty(0), calls=calls)


@dataclass
class QueueingRunner:
    """The candidate's queue has room for so many calls."""

    room: int

    def queue_room(self, batch: Batch, capacity: int) -> int:
        return capacity if batch.calls <= self.room else self.room


@pytest.mark.parametrize(
    ("rough_ms", "call_ms", "room", "eager_calls", "expected"),
    [
        (0.05, 0.05, 256, 192, 192),
        (0.6, 0.05, 256, 192, 192),
        (0.6, 0.05, 48, 192, 48),  # what was fast enough to seem short is found to fill the queue
        (0.05, 0.05, 48, 64, 48),
        (0.1, 0.1, 256, 192, 192),
        (0.1, 0.1, 100, 192, 100),  # and so is the baseline's number, where both are about as fast
        (1.0, 1.0, 256, 192, 12),
    ],
)
def test_a_block_has_as_many_calls_as_were_seen_to_be_queued(
    monkeypatch: pytest.MonkeyPatch,
    rough_ms: float,
    call_ms: float,
    room: int,
    eager_calls: int,
    expected: int,
) -> None:
    plan, client = Plan(block_ms=9.0, precision=0.1, max_s=1), QueueingRunner(room)
    session = QueueingCourt(baseline=eager_calls)
    candidate_evaluation = CandidateEvaluation(session, client, plan, "", thorough=False, say=str)  # type: ignore[arg-type]
    tried: list[int] = []

    def timed_block(calls: int) -> float:
        tried.append(calls)
        return call_ms

    monkeypatch.setattr(candidate_evaluation._correctness_checks, "timed_block", timed_block)
    assert candidate_evaluation._block_calls(rough_ms) == expected
    assert expected in tried or expected == room
    assert candidate_evaluation._eager_calls <= room
