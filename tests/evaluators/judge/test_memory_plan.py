"""How many calls fit into a device's memory: arithmetic, without a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.judge.memory_plan import (
    BUFFER_SETS,
    CONTEXT_BYTES,
    GIB,
    LARGE_SHARE,
    MEMORY_SHARE,
    WEIGHT_SETS,
    MemoryPlan,
    TooLarge,
    most_calls,
    shared_calls,
)
from evaluators.reference.running_reference import UnfitReference


def plan_of(
    *,
    gib: float,
    inputs: float,
    outputs: float,
    answer: float,
    free: float | None = None,
    weights: float = 0.0,
) -> MemoryPlan:
    """In GiB; the judge process uses one, and the rest is free unless stated otherwise."""
    sizes = (gib, gib - 1 if free is None else free, 1, inputs, outputs, answer, weights)
    total, left, held, *call, peak, weight = (int(each * GIB) for each in sizes)
    return MemoryPlan(
        total_bytes=total,
        free_bytes=left,
        held_bytes=held,
        input_bytes=call[0],
        output_bytes=call[1],
        answer_bytes=peak,
        weight_bytes=weight,
    )


def test_the_shares_limit_small_calls() -> None:
    plan = plan_of(gib=79, inputs=0.01, outputs=0.01, answer=0.1)
    most = most_calls(plan.total_bytes, plan.input_bytes + plan.output_bytes)
    assert most == int(MEMORY_SHARE * 79 / 0.02) == 592
    assert plan.calls(256) == 256
    assert plan.calls(5) == 5


def test_a_large_call_has_shared_buffers_for_one() -> None:
    assert most_calls(100 * GIB, int(LARGE_SHARE * 100 * GIB) + 1) == 1
    assert most_calls(100 * GIB, int(LARGE_SHARE * 100 * GIB)) == 3


def test_large_answers_leave_room_for_fewer_calls() -> None:
    """A problem with tensors of 1 GiB on a GPU of 79 GiB: by the shares alone it would have five calls."""
    roomy, tight = (plan_of(gib=79, inputs=1, outputs=1, answer=each) for each in (6, 36))
    assert most_calls(roomy.total_bytes, 2 * GIB) == 5
    assert roomy.calls(5) == 5
    assert tight.calls(5) == 4
    assert tight.needed_bytes(4) <= tight.free_bytes < tight.needed_bytes(5)


def test_everything_in_memory_counts() -> None:
    plan = plan_of(gib=140, inputs=1, outputs=2, answer=10, weights=0.5)
    runner = CONTEXT_BYTES + WEIGHT_SETS * 0.5 * GIB + 3 * 2 * GIB
    assert plan.runner_bytes(3) == runner
    buffers, staged, copied, compared, spare = 2 * 3 * 3, 3, 3 * 2, 3, 1
    besides = (buffers + staged + copied + compared + spare + 10) * GIB
    assert plan.needed_bytes(3) == pytest.approx(besides + 3 * runner)
    more = plan.needed_bytes(3, candidates=3, calls=2) - plan.needed_bytes(3)
    sets, copied_less = 2 * 2 * 3 * GIB, 2 * GIB
    assert more == pytest.approx(sets + 3 * plan.runner_bytes(2) - runner - copied_less)


def test_a_problem_that_does_not_fit_is_refused_with_a_sentence() -> None:
    plan = plan_of(gib=79, inputs=6, outputs=6, answer=40)
    with pytest.raises(TooLarge, match=r"^this problem needs about 101 GiB; the device has 79 GiB$"):
        plan.calls(1)
    assert issubclass(TooLarge, UnfitReference)
    assert plan_of(gib=139, inputs=6, outputs=6, answer=40).calls(1) == 1


def test_memory_used_by_others_does_not_make_the_problem_too_large() -> None:
    plan = plan_of(gib=79, inputs=1, outputs=1, answer=6, free=12)
    with pytest.raises(
        MemoryError, match="judging one kernel needs about 21 GiB more; 12 GiB of the device's"
    ):
        plan.calls(5)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_several_kernels_at_once_have_no_more_than_their_shares(count: int) -> None:
    plan = plan_of(gib=140, inputs=0.01, outputs=0.01, answer=0.1)
    calls = plan.calls_of_each(24, count)
    assert calls == shared_calls(24, count)
    assert calls == 24 or calls * count <= BUFFER_SETS * 24


def test_five_softmax_kernels_with_inputs_of_a_gib_leave_room_for_the_answers() -> None:
    plan = plan_of(gib=139, inputs=1, outputs=1, answer=10)
    whole = plan.calls(10)
    assert whole == 10
    calls = plan.calls_of_each(whole, 5)
    assert calls == 3 < shared_calls(whole, 5) == 6
    assert plan.needed_bytes(whole, 5, 3) <= plan.free_bytes < plan.needed_bytes(whole, 5, 4)
    assert plan.calls_of_each(whole, 12) == 1
    with pytest.raises(MemoryError, match="judging 20 kernels at once needs about 156 GiB more"):
        plan.calls_of_each(whole, 20)


def test_fewer_kernels_are_compared_if_not_all_fit() -> None:
    """Calls of 6 GiB in and 6 GiB out: a GPU of 79 GiB has room for one kernel, one of 140 GiB for five."""
    small, large = (plan_of(gib=gib, inputs=6, outputs=6, answer=10) for gib in (79, 140))
    assert small.as_lean_as_needed().most_candidates(1, 5) == 1
    assert large.most_candidates(1, 3) == 3
    most = large.most_candidates(1, 20)
    assert large.needed_bytes(1, most, 1) <= large.free_bytes < large.needed_bytes(1, most + 1, 1)


def test_the_baselines_memory_counts_for_each_runner() -> None:
    """Two inputs of 4 GiB, whose squared difference is one number: eager needs 8 GiB in between."""
    plan = plan_of(gib=79, inputs=8, outputs=0, answer=12)
    assert plan.most_candidates(1, 5) == 5
    seen = plan.with_baseline(plan.runner_bytes(1) + 8 * GIB, 1)
    assert seen.temporary_bytes == 8 * GIB
    assert seen.needed_bytes(1) - plan.needed_bytes(1) == 3 * 8 * GIB
    assert seen.most_candidates(1, 5) == 1
    assert plan.with_baseline(GIB // 2, 1) == plan


def test_a_call_that_does_not_fit_otherwise_is_judged_with_lean_runners() -> None:
    """KernelBench's level1/23 on a GPU of 79 GiB: 6 GiB in and 6 GiB out."""
    plan = plan_of(gib=79, inputs=6, outputs=6, answer=26)
    assert plan.needed_bytes(1) > plan.free_bytes
    lean = plan.as_lean_as_needed()
    assert lean.lean
    assert lean.calls(1) == 1
    with pytest.raises(TooLarge):
        plan_of(gib=79, inputs=9, outputs=9, answer=40).as_lean_as_needed().calls(1)


def test_runners_keep_memory_if_there_is_room() -> None:
    plan = plan_of(gib=140, inputs=6, outputs=6, answer=26)
    assert plan.as_lean_as_needed() is plan


def test_lean_runners_use_memory_for_outputs_in_turn() -> None:
    plan = plan_of(gib=79, inputs=1, outputs=4, answer=1)
    held, turn = (replace(plan, lean=each).needed_bytes(1) / GIB for each in (False, True))
    assert held - turn == pytest.approx(3 * 4 + 1 + 3 - 4)  # three runners' outputs, the answer, comparing
