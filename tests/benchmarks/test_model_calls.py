"""Recorded calls are counted by operator and tensors, as in the profiler."""

from __future__ import annotations

from benchmarks.model_calls import counted
from evaluators.suites.traced.call import Tensor, TracedCall


def test_calls_with_the_same_tensors_are_one() -> None:
    matrix, row = Tensor(shape=(4, 8), dtype="float32"), Tensor(shape=(8,), dtype="bfloat16")
    number = Tensor(shape=(), dtype="float32")
    calls = [
        TracedCall(operator="aten.add.Tensor", arguments=(matrix, row), keywords={"alpha": 2}, count=3),
        TracedCall(operator="aten.add.Tensor", arguments=(matrix,), keywords={"other": row}),
        TracedCall(operator="aten.add.Scalar", arguments=(matrix, 2), count=2),
        TracedCall(operator="aten.mul.Tensor", arguments=(number, None)),
    ]
    assert counted(calls) == {
        ("add", (((4, 8), "float32"), ((8,), "bfloat16"))): 4,
        ("add", (((4, 8), "float32"),)): 2,
        ("mul", ()): 1,
    }
