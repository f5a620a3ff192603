"""The time of each call from a trace; on a GPU from its device rows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from search.optimize.profiling.recording import OperatorKind, record
from search.optimize.profiling.timing import label, measure, timing_of
from tests.search.optimize.example_models import Mlp, loaded, rand
from tests.search.optimize.extraction.traced_models import traced

OPERATORS = ("aten.addmm.default", "aten.gelu.default", "aten.view.default")


def event(name: str, device: str = "CPU", us: float = 0.0, **fields: Any) -> Any:
    return SimpleNamespace(
        name=name,
        device_type=SimpleNamespace(name=device),
        time_range=SimpleNamespace(elapsed_us=lambda: us),
        cpu_time_total=us,
        **{"kernels": [], "cpu_children": [], "is_user_annotation": False, **fields},
    )


def kernel(name: str, us: float) -> Any:
    return SimpleNamespace(name=name, duration=us)


def range_of(place: int, *kernels: Any, us: float = 900.0) -> Any:
    """Like the profiler's events: the operator is in the range, its kernels belong to both, and the range
    also has a device row."""
    name = label(place, OPERATORS[place])
    inside = event("aten::op", us=us / 2, kernels=list(kernels))
    return event(name, us=us, cpu_children=[inside], kernels=[kernel(name, 1234.0)])


def on_gpu(iterations: int = 2) -> list[Any]:
    found = []
    for _ in range(iterations):
        found += [
            range_of(0, kernel("nvjet_hsh", 40.0), kernel("splitk", 5.0)),
            range_of(1, kernel("gelu", 2.0)),
        ]
        found += [range_of(2), event("aten::op", us=450.0)]
        rows = [("nvjet_hsh", 40.0), ("splitk", 5.0), ("gelu", 2.0), ("triton_of_mine", 8.0)]
        found += [event(name, "CUDA", us) for name, us in rows]
        found.append(event(label(0, OPERATORS[0]), "CUDA", 1234.0, is_user_annotation=True))
        found.append(event(label(1, OPERATORS[1]), "CUDA", 1234.0))
    return found


def test_on_a_gpu_kernels_count_and_neither_operators_nor_ranges() -> None:
    found = timing_of(on_gpu(), OPERATORS, wall_ms=0.1, iterations=2, on_gpu=True)
    assert found.call_ms == pytest.approx([0.045, 0.002, 0.0])
    assert found.kernels == 3
    assert found.quickest_ms == pytest.approx(0.002)
    assert found.other_ms == pytest.approx(0.008)  # no operator launched it
    assert found.alike == 1


def test_on_a_cpu_operators_count_without_the_range_around_them() -> None:
    events = [range_of(0, us=us) for us in (1000.0, 800.0, 9000.0)]
    events.append(event(label(1, OPERATORS[1]), us=60.0))  # an operator that the profiler does not see
    found = timing_of(events, OPERATORS, wall_ms=1.0, iterations=3, on_gpu=False)
    assert found.call_ms == pytest.approx([0.4, 0.06, 0.0])
    assert (found.kernels, found.other_ms) == (0, 0.0)
    assert found.alike == pytest.approx(4 / 9)


@pytest.mark.slow
def test_a_model_is_timed_call_by_call() -> None:
    model = loaded(Mlp(), rand(64, 8), backward=True)
    operators = [call.operator for call in record(model).calls]
    said: list[str] = []
    found = measure(model, operators, warmup=1, iterations=2, say=said.append)
    assert found.alike == 1
    assert len(found.call_ms) == len(operators)
    assert all(each > 0 for each in found.call_ms)
    assert found.quickest_ms == pytest.approx(min(found.call_ms))
    assert said == ["timing 6 iterations", "tracing 2 iterations"]
    assert all(each.grad is None for each in model.module.parameters())


def test_a_fused_layer_is_timed_operator_by_operator() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    made = traced(layer, rand(2, 3, 8))
    assert "addmm" in {call.name for call in made.run.calls}, "and the graph has the same calls"
    operators = made.graph.operators
    assert measure(made.model, operators, warmup=0, iterations=1, say=lambda _: None).alike == 1
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_model_that_does_not_repeat_itself_is_noticed() -> None:
    model = loaded(Mlp(), rand(4, 8))
    operators = [*(call.operator for call in record(model).calls), "aten.gelu.default"]
    assert measure(model, operators, warmup=0, iterations=1, say=lambda _: None).alike < 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_calls_have_the_time_of_their_kernels() -> None:
    module, x = Mlp().to("cuda").half(), rand(4096, 8).to("cuda").half()
    model = replace(loaded(module, x, backward=True), device="cuda")
    calls = record(model).calls
    found = measure(model, [call.operator for call in calls], warmup=2, iterations=5, say=lambda _: None)
    assert found.alike == 1
    for call, ms in zip(calls, found.call_ms, strict=True):
        assert (ms == 0) == (call.kind is OperatorKind.VIEW), call.operator
        assert ms < 1  # such a small call takes some µs, the range around it more
    assert found.kernels >= sum(call.kind is not OperatorKind.VIEW for call in calls)
    assert sum(found.call_ms) < 1.2 * found.wall_ms
    assert found.other_ms < 0.2 * sum(found.call_ms)
