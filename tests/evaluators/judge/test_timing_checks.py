"""Chains of calls, with modules whose times are known, without a device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch

from evaluators.judge.correctness_checks import CorrectnessChecks
from evaluators.judge.runner_client import CandidateRefused
from evaluators.judge.staging import Batch
from evaluators.judge.timing.gpu_timing import CHAIN_CALLS
from evaluators.judge.timing.timing_checks import TimingChecks
from evaluators.records.evaluation import Status
from evaluators.records.timing import Block, Overhead
from evaluators.reference.accuracy.comparison import OutputComparison
from evaluators.reference.answer import Draw
from evaluators.runner.shared_buffers import SampledOutput

BESIDES_MS = 0.4
LINK_MS = {False: 0.025, True: 0.05}
"""By whether the module waits for the GPU in every call."""
Cost = Callable[[int, bool], float]
"""ms of so many calls, in a chain or not."""


@dataclass
class RunnerClient:
    """Its blocks take the time that `cost` returns, plus every block's overhead."""

    cost: Cost
    waits: bool = False
    queued_some: bool = False
    late: bool = False
    missing: int | None = None
    copying_ms: Iterator[float] = field(default_factory=lambda: iter(()))
    """By how much a block with the copying of outputs takes longer than the next one without."""

    def kept_block(self, batch: Batch) -> tuple[Block, int, list[torch.Tensor]]:
        block = self.block(batch)
        return Block(calls=batch.calls, wall_ms=block.wall_ms - next(self.copying_ms)), 0, []

    def sampled_output(self, calls: int) -> SampledOutput:
        call = calls // 2
        unwritten = torch.arange(calls) == (-1 if self.missing is None else self.missing)
        return SampledOutput(call=call, outputs=SharedBuffers().snapshot(call), unwritten=unwritten)

    def block(self, batch: Batch) -> Block:
        return Block(calls=batch.calls, wall_ms=BESIDES_MS + self.cost(batch.calls, False))

    def chain(self, batch: Batch) -> tuple[Block, list[int]]:
        calls = batch.calls
        assert calls <= CHAIN_CALLS
        wall_ms = BESIDES_MS + self.cost(calls, True) + (calls - 1) * LINK_MS[self.waits]
        return Block(calls=calls, wall_ms=wall_ms), list(reversed(range(calls)))


class SharedBuffers:
    def snapshot(self, call: int) -> list[torch.Tensor]:
        return [torch.tensor(call)]


@dataclass
class Reference:
    """Accepts every answer."""

    weight_forms = ()
    returned_inputs = ()
    random_checks = None
    checked: list[tuple[int, int, int]] = field(default_factory=list)

    def judge_draw(
        self, outputs: list[torch.Tensor], answer: tuple[int, int], *, own: bool
    ) -> OutputComparison:
        seed, before = answer
        self.checked.append((seed, int(outputs[0]), before))
        return OutputComparison(error=0.0, eager_error=0.0, problem="")


@dataclass
class Calibration:
    link_again: float = LINK_MS[False]
    delivery_ms: float = 0.0
    delivery_again_ms: float = 0.0
    slack_ms: float = 0.01
    link_ms = LINK_MS

    def chain_slack_ms(self, link_ms: float) -> float:
        return self.slack_ms

    def overhead(self, calls: int) -> Overhead:
        return Overhead(total_ms=BESIDES_MS, delivery_ms=self.delivery_ms)

    def overhead_again(self, calls: int) -> Overhead:
        return Overhead(total_ms=BESIDES_MS, delivery_ms=self.delivery_again_ms)

    def measured_link_ms(self, *, waits: bool) -> float:
        return self.link_again


@dataclass
class ReferenceSession:
    """Knows each call's secret."""

    calibration: Calibration = field(default_factory=Calibration)
    reference: Reference = field(default_factory=Reference)
    buffers: SharedBuffers = field(default_factory=SharedBuffers)

    def stage_fresh(self, calls: int, client: RunnerClient, *, own: bool = False) -> Batch:
        draws = tuple(Draw(seed=100 + call) for call in range(calls))
        return Batch(memory=torch.empty(0), calls=calls, draws=draws)

    def answer_after(self, before: list[torch.Tensor], draw: Draw) -> tuple[int, int]:
        return draw.seed, int(before[0])


def judge(
    cost: Cost, *, waits: bool = False, late: bool = False, calls: int = 192, missing: int | None = None
) -> tuple[float, list[str]]:
    """ms per call to add, and the remarks. Raises what the checks raise."""
    session, client = ReferenceSession(), RunnerClient(cost, waits=waits, late=late, missing=missing)
    correctness_checks = CorrectnessChecks(session, client)  # type: ignore[arg-type]
    timing_checks = TimingChecks(session, session.calibration, client, correctness_checks)  # type: ignore[arg-type]
    more_ms = timing_checks.batching_ms(
        calls, client.block(session.stage_fresh(calls, client)).call_ms(BESIDES_MS)
    )
    assert session.reference.checked, "who is fast in a chain must be right there"
    for seed, call, before in session.reference.checked:
        assert seed == 100 + call
        assert before == call + 1, "the one that was made before"
    return more_ms, timing_checks.remarks


def test_an_answer_of_a_chain_is_checked_once() -> None:
    """Among random numbers, the same answer twice would look like two dependent calls."""
    for _ in range(20):
        session, client = ReferenceSession(), RunnerClient(lambda n, chained: n * 0.1)
        checks = TimingChecks(session, session.calibration, client, CorrectnessChecks(session, client))  # type: ignore[arg-type]
        checks._chain_ms(16)
        calls = [call for _, call, _ in session.reference.checked]
        assert len(calls) == len(set(calls)) == 9


@pytest.mark.parametrize("call_ms", [0.003, 0.03, 0.1, 1.0])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("calls", [2, 16, 192])
def test_single_calls_are_fair(call_ms: float, waits: bool, calls: int) -> None:
    assert judge(lambda n, chained: n * call_ms, waits=waits, calls=calls) == (0.0, [])


def test_a_wait_once_a_block_is_fair() -> None:
    """For a time slice of the GPU, as with work on several streams."""
    assert judge(lambda n, chained: 1.3 + n * 0.59, calls=16) == (0.0, [])


def together(alone_ms: float, more_ms: float) -> Cost:
    """All of a block in the first call, which a chain prevents."""
    return lambda n, chained: n * (alone_ms + more_ms) if chained else alone_ms + n * more_ms


ALL_AT_ONCE = pytest.mark.parametrize(("alone_ms", "more_ms"), [(0.04, 0.001), (0.3, 0.01), (1.0, 0.4)])


@ALL_AT_ONCE
def test_calls_computed_together_are_rejected(alone_ms: float, more_ms: float) -> None:
    with pytest.raises(CandidateRefused, match="not computed one by one") as refused:
        judge(together(alone_ms, more_ms))
    assert (refused.value.status, refused.value.rule) == (Status.REJECTED, "batched calls")


def test_a_chain_that_was_queued_too_late_is_no_proof() -> None:
    def launches(calls: int, chained: bool) -> float:
        return calls * (0.15 if chained else 0.03)

    with pytest.raises(RuntimeError, match="busy"):
        judge(launches, late=True)
    assert judge(lambda n, chained: n * 0.03, late=True) == (0.0, [])


def test_a_link_that_was_measured_too_low_is_no_kernels_fault() -> None:
    session, client = ReferenceSession(Calibration(link_again=0.2)), RunnerClient(lambda n, chained: n * 0.15)
    correctness_checks = CorrectnessChecks(session, client)  # type: ignore[arg-type]
    timing_checks = TimingChecks(session, session.calibration, client, correctness_checks)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="busy"):
        timing_checks.batching_ms(64, 0.01)


def test_where_inputs_are_large_a_link_may_vary() -> None:
    """Changing 0.8 GB between two calls takes far longer than reading it once."""

    def more_ms(slack_ms: float) -> float:
        client = RunnerClient(lambda n, chained: n * (0.2 + 0.3 * chained))
        session = ReferenceSession(Calibration(link_again=0.2, slack_ms=slack_ms))
        checks = CorrectnessChecks(session, client)  # type: ignore[arg-type]
        return TimingChecks(session, session.calibration, client, checks).batching_ms(16, 0.2)  # type: ignore[arg-type]

    assert more_ms(0.3) == 0.0
    with pytest.raises((CandidateRefused, RuntimeError)):
        more_ms(0.01)


def unproven(
    longer_ms: Iterator[float], *, again_ms: float = 1.0, right: bool = True
) -> tuple[float, list[str]]:
    """ms per block of ten to add if copying the outputs takes 1 ms of 3, and the remarks."""
    session = ReferenceSession(Calibration(delivery_ms=1.0, delivery_again_ms=again_ms))
    client = RunnerClient(lambda n, chained: n * 0.3, copying_ms=longer_ms)
    correctness_checks = CorrectnessChecks(session, client)  # type: ignore[arg-type]
    correctness_checks.checked_block = lambda calls: (client.block(session.stage_fresh(calls, client)), None)  # type: ignore[assignment, method-assign, return-value]
    correctness_checks.is_right = lambda outputs, draw: right  # type: ignore[method-assign]
    checks = TimingChecks(session, session.calibration, client, correctness_checks)  # type: ignore[arg-type]
    return 10 * checks._unproven_ms(10), checks.remarks


def test_outputs_that_are_copied_are_taken_off() -> None:
    assert unproven(itertools.repeat(0.9)) == (0.0, [])
    assert unproven(itertools.repeat(0.9), right=False) == (1.0, []), "the same memory in every call"


def test_uncopied_outputs_are_rejected() -> None:
    with pytest.raises(CandidateRefused, match=r"took 0\.01 ms per block, but a copy takes 1 ms") as refused:
        unproven(itertools.repeat(0.01))
    assert (refused.value.status, refused.value.rule) == (Status.REJECTED, "outputs not handed in")
    with pytest.raises(RuntimeError, match="busy"):
        unproven(itertools.repeat(0.3), again_ms=0.5)


@pytest.mark.parametrize("copies_ms", [1.0, 0.4, 0.0])
def test_the_part_of_the_copying_that_noise_hides_counts(copies_ms: float) -> None:
    more_ms, (remark,) = unproven(itertools.cycle([copies_ms - 3, copies_ms, copies_ms + 3]))
    assert more_ms == pytest.approx(1 - copies_ms)
    assert "vary too much" in remark


def test_the_copying_is_measured_again_if_noise_hides_it() -> None:
    """It seemed to take 1 ms on a busy machine, and takes 0.5."""
    assert unproven(itertools.cycle([0.4, 0.5, 0.6]), again_ms=0.5) == (0.0, [])
    more_ms, _ = unproven(itertools.cycle([-3, 0.1, 3]), again_ms=0.5)
    assert more_ms == pytest.approx(0.4)


def test_inputs_changed_in_place_are_as_the_block_left_them() -> None:
    """Batch norm's output is handed in; its running mean, which it also returns, is in an input that has been
    erased by then."""
    session = ReferenceSession()
    session.reference.changed_inputs, session.reference.returned_inputs = [3], [[1, 3]]  # type: ignore[misc]
    client = RunnerClient(lambda n, chained: n * 1.0)
    session.buffers.snapshot = lambda call: [torch.ones(2), torch.zeros(2), torch.zeros(2)]  # type: ignore[method-assign]
    checks = TimingChecks(session, session.calibration, client, CorrectnessChecks(session, client))  # type: ignore[arg-type]
    output, mean, changed = checks._handed_in(0, [torch.full((2,), 7.0)])
    assert output.tolist() == [1, 1]
    assert mean.tolist() == changed.tolist() == [7, 7]


@ALL_AT_ONCE
def test_a_kernel_that_waits_in_every_call_is_timed_in_a_chain(alone_ms: float, more_ms: float) -> None:
    calls = 192
    counted_ms = (alone_ms + calls * more_ms) / calls
    missing_ms, (remark,) = judge(together(alone_ms, more_ms), waits=True, calls=calls)
    # The first link of a chain costs nothing.
    expected_ms = alone_ms + more_ms - LINK_MS[True] / CHAIN_CALLS
    assert counted_ms + missing_ms == pytest.approx(expected_ms)
    assert "timed in a chain" in remark


def test_a_chain_has_no_gaps() -> None:
    with pytest.raises(CandidateRefused, match="call 7 had not been answered"):
        judge(lambda n, chained: n * 0.03, missing=7)


def test_a_busy_machine_makes_some_chains_slow() -> None:
    chains = 0

    def cost(calls: int, chained: bool) -> float:
        nonlocal chains
        chains += chained
        return calls * (0.5 if chained and chains < 6 else 0.1)

    assert judge(cost) == (0.0, [])
    assert chains == 6
