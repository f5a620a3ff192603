"""Whose fault it is if the judge process has no memory left, without a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluators.judge.candidate_evaluation import CandidateEvaluation
from evaluators.judge.device_memory import CLEARED_BYTES_PER_S, DeviceMemory, require_room, used_up
from evaluators.judge.head_to_head import Contender, HeadToHead
from evaluators.judge.judge_process import _failure
from evaluators.judge.memory_plan import GIB, SPARE_BYTES, MemoryPlan, TooLarge
from evaluators.judge.runner_client import BaselineFailed, CandidateRefused
from evaluators.judge.timing.gpu_timing import GpuRunnerClient
from evaluators.records.evaluation import Status
from evaluators.records.opening import Steps
from evaluators.records.problem import Problem
from evaluators.records.timing import Effort, Plan
from evaluators.runner.messages import Done, Failed, Phase
from evaluators.system import machine_memory
from tests.evaluators.references import session_of

PLAN = MemoryPlan(
    total_bytes=80 * GIB,
    free_bytes=79 * GIB,
    held_bytes=GIB,
    input_bytes=GIB,
    output_bytes=GIB,
    answer_bytes=8 * GIB,
    weight_bytes=0,
)


class Memory(DeviceMemory):
    """A GPU of which others use these amounts, one per look."""

    def __init__(self, *others: int, plan: MemoryPlan | None = PLAN) -> None:
        super().__init__("cpu")
        self._plan, self._others = plan, [each * GIB for each in others]

    def others_bytes(self) -> int:
        return self._others.pop(0)


NO_MEMORY = "tried to allocate 6 GiB"


def evaluation_of(
    memory: DeviceMemory, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None
) -> CandidateEvaluation:
    """Of a candidate that leaves no memory for the first answer, or whose evaluation ends with another
    error."""

    def no_memory(plan: Plan) -> float:
        raise error or torch.OutOfMemoryError(NO_MEMORY)

    session: Any = SimpleNamespace(
        clock=Steps(),
        device="cuda",
        problem=Problem(name="test", source="class Model: ..."),
        capacity=3,
        compiled=None,
        vendor_kernels=None,
        memory=memory,
        eager_alone=lambda plan, renew: [],
        reference=SimpleNamespace(weight_forms=(), random_checks=None, restore_weights=lambda: None),
        eager_calls=lambda plan: 1,
        times_ms=lambda blocks: [],
        load=lambda client: None,
        limits=SimpleNamespace(roofline=lambda: None),
    )
    client: Any = SimpleNamespace()
    plan = Plan(block_ms=9.0, precision=0.1, max_s=1)
    found = CandidateEvaluation(session, client, plan, "", effort=Effort.USUAL, say=lambda stage: None)
    monkeypatch.setattr(found._correctness_checks, "begin", no_memory)
    return found


def test_a_kernel_within_its_planned_memory_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        evaluation_of(Memory(20, 24), monkeypatch).verdict()
    with pytest.raises(torch.OutOfMemoryError):
        evaluation_of(Memory(20, 60, plan=None), monkeypatch).verdict()


def test_a_kernel_that_uses_more_memory_learns_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation_of(Memory(20, 60), monkeypatch).verdict()
    assert found.status is Status.CRASHED
    assert "no memory left to check it: it uses 40 GiB of the device's memory, more than 4.6 GiB" in found.log
    assert "tried to allocate" in found.log


def test_the_baselines_failure_is_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = BaselineFailed(Status.RUNTIME_ERROR, NO_MEMORY)
    with pytest.raises(BaselineFailed):
        evaluation_of(Memory(20, 24), monkeypatch, failed).verdict()
    found = evaluation_of(Memory(20, 60), monkeypatch, failed).verdict()
    assert found.status is Status.CRASHED
    assert "it uses 40 GiB of the device's memory" in found.log
    early = evaluation_of(Memory(60), monkeypatch)
    begin = early._correctness_checks.begin
    monkeypatch.setattr(early._sampling, "time_baseline", lambda: begin(early._sampling.plan))
    with pytest.raises(torch.OutOfMemoryError):  # no kernel has been loaded
        early.verdict()
    own = evaluation_of(Memory(20), monkeypatch, CandidateRefused(Status.RUNTIME_ERROR, NO_MEMORY)).verdict()
    assert own.status is Status.RUNTIME_ERROR


@pytest.mark.parametrize("ours", [True, False])
def test_the_failing_runner_is_identified(ours: bool) -> None:
    said = Failed(phase=Phase.RUN, error=NO_MEMORY)
    client = object.__new__(GpuRunnerClient)
    client._ours, client._channel = ours, SimpleNamespace(receive=lambda limit: said.message())  # type: ignore[assignment]
    with pytest.raises(CandidateRefused, match=NO_MEMORY) as raised:
        client._answer(Done)
    assert isinstance(raised.value, BaselineFailed) is ours


def test_a_kernel_may_use_as_much_memory_as_the_baseline() -> None:
    memory = Memory()
    most = PLAN.runner_bytes(3) + SPARE_BYTES
    assert not memory.overdrawn(most, 3) and memory.overdrawn(most + 1, 3)
    memory.note_baseline(10 * GIB, 3)
    assert not memory.overdrawn(11 * GIB, 3) and memory.overdrawn(11 * GIB + 1, 3)


def test_among_several_kernels_none_is_blamed_for_the_memory() -> None:
    def no_memory(entry: Contender) -> None:
        raise torch.OutOfMemoryError

    head_to_head = object.__new__(HeadToHead)
    restored: list[int] = []
    head_to_head._session = SimpleNamespace(  # type: ignore[assignment]
        reference=SimpleNamespace(restore_weights=lambda: restored.append(1))
    )
    entry = Contender(number=0, client=None, correctness_checks=None)  # type: ignore[arg-type]
    with pytest.raises(torch.OutOfMemoryError):
        head_to_head._step(entry, no_memory).run()
    assert entry.verdict is None and restored


def test_on_a_cpu_nothing_is_planned_but_shares() -> None:
    memory, reference = DeviceMemory("cpu"), session_of(torch.relu, lambda: [torch.zeros(2**10, 2**10)])
    assert memory.calls(reference, 7) == 7
    assert 7 < memory.calls(reference, 10**6) < 10**6
    assert memory.calls_of_each(24, 5) == 12
    assert memory.most_candidates(24, 5) == 5
    assert memory.others_bytes() == 0
    assert memory.overdrawn(2**60, 1) == ""


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, *, free: int, reserved: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved * GIB)


@pytest.mark.parametrize(("free", "slept"), [(30, []), (10, [50 * GIB / CLEARED_BYTES_PER_S])])
def test_a_block_does_not_begin_while_memory_is_cleared(
    free: int, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, free=free, reserved=60)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: on_a_gpu(monkeypatch, free=60, reserved=10))
    waited: list[float] = []
    monkeypatch.setattr("evaluators.judge.device_memory.time.sleep", waited.append)
    DeviceMemory("cuda").trim()
    assert waited == slept


def test_a_problem_that_alone_takes_all_memory_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, free=8, reserved=70)
    order = {"op": "open", "problem": {"source": "batch_size = 4\ndim = 2\nclass Model: ..."}}
    answer = _failure(order, torch.OutOfMemoryError("tried to allocate 14 GiB"))
    assert answer["op"] == "unfit"
    assert "takes more than the 80 GiB that the device has" in answer["error"]
    assert "problem.sizes.<name>=..., with one of batch_size, dim" in answer["error"]


def test_memory_used_by_others_is_not_the_problems_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, free=8, reserved=40)
    error = torch.OutOfMemoryError("CUDA out of memory")
    assert not used_up(error)
    assert _failure({"op": "open"}, error)["op"] == "failed"
    on_a_gpu(monkeypatch, free=8, reserved=70)
    assert not used_up(RuntimeError("no kernel image"))


LARGE = """
import torch

batch, width = 4096, 393216


class Model(torch.nn.Module):
    def __init__(self, n=1):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros({weights}))

    def forward(self, x):
        return {answer}


def get_inputs():
    return [torch.rand(batch, width)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("weights", "answer", "fields", "needs"),
    [
        ("1", "torch.relu(x)", {}, "at least 42.0 GiB on a CPU"),  # KernelBench's level 1, problem 19
        ("1", "torch.relu(x)", {"timed": False}, "at least 30.0 GiB"),
        ("1", "torch.relu(x)", {"dtype": "float16"}, "at least 21.0 GiB"),
        ("1", "x.sum()", {}, "at least 24.0 GiB"),
        ("1", "torch.relu(x)", {"overrides": {"batch": 512}}, ""),
        ("1 << 30", "x * self.weight[0]", {"overrides": {"batch": 1}}, "at least 20.0 GiB"),
        ("1", "x[x > 0]", {"overrides": {"batch": 64}}, ""),  # its shape is unknown without data
    ],
)
def test_a_problem_that_cannot_fit_is_refused_before_it_is_drawn(
    weights: str, answer: str, fields: Any, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_memory, "free_bytes", lambda: 18 * GIB)
    monkeypatch.setattr(machine_memory, "total_bytes", lambda: 24 * GIB)
    problem = Problem(name="large", source=LARGE.format(weights=weights, answer=answer), **fields)
    if not needs:
        require_room(problem)
        return
    with pytest.raises(TooLarge) as caught:
        require_room(problem)
    said = f"{needs} on a CPU" if "CPU" not in needs else needs
    assert f"this problem needs {said}; 18.0 of 24.0 GiB of memory are free" in str(caught.value)
