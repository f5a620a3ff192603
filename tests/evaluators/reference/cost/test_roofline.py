"""Floors: what is physically possible must never be called impossible."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.reference.cost import roofline
from evaluators.reference.cost.operation_count import Work
from evaluators.reference.cost.roofline import TRUST, too_fast
from tests.evaluators.conftest import H200

MATMUL = Work(bytes=3 * 4 * 4096**2, operations=2 * 4096**3)
"""4096³ in float32."""


def test_the_floor_is_the_larger_of_memory_and_compute() -> None:
    found = roofline.roofline(MATMUL, H200, "float32", lower=True)
    assert found.bound == "compute"
    assert found.floor_ms == pytest.approx(0.174, rel=0.01)
    stream = Work(bytes=2 * 4 * 4096 * 65536, operations=0)
    found = roofline.roofline(stream, H200, "float32", lower=False)
    assert found.bound == "memory"
    assert found.floor_ms == pytest.approx(0.499, rel=0.01)


def test_a_time_that_memory_does_not_allow_is_refused() -> None:
    size = 4 * 4096 * 65536
    work = Work(bytes=2 * size, operations=0, needed_input_bytes=size, needed_output_bytes=size)
    many = 8 * size
    claims = {0.665: False, 0.499: False, 0.44: False, 0.40: True, 0.05: True}
    for kernel_ms, refused in claims.items():
        reason = too_fast(kernel_ms=kernel_ms, eager_ms=1.05, work=work, peaks=H200, footprint_bytes=many)
        assert bool(reason) is refused
        if reason:
            assert "problem.floor=false" in reason and f"{kernel_ms:.4g} ms" in reason


def test_a_time_that_arithmetic_does_not_allow_is_refused() -> None:
    work = replace(MATMUL, needed_operations=MATMUL.operations)
    for kernel_ms, refused in {0.174: False, 0.045: False, 0.035: True}.items():
        reason = too_fast(kernel_ms=kernel_ms, eager_ms=2.7, work=work, peaks=H200, footprint_bytes=0)
        assert bool(reason) is refused


def test_a_floor_that_eager_beats_is_no_floor() -> None:
    work = Work(bytes=10**9, operations=0, needed_input_bytes=10**9)
    claim = {"kernel_ms": 0.01, "work": work, "peaks": H200, "footprint_bytes": 10**11}
    assert too_fast(eager_ms=1.0, **claim)  # type: ignore[arg-type]
    assert too_fast(eager_ms=0.1, **claim) is None  # type: ignore[arg-type]


@pytest.mark.slow
@given(
    inputs=st.integers(1, 4 * H200.cache_bytes),
    outputs=st.integers(0, 4 * H200.cache_bytes),
    parameters=st.integers(0, 4 * H200.cache_bytes),
    calls=st.integers(1, 32),
    warm_share=st.floats(0, 1),
)
def test_an_honest_stream_with_a_perfect_cache_is_never_refused(
    inputs: int, outputs: int, parameters: int, calls: int, warm_share: float
) -> None:
    """Calls at the full bandwidth, rotating through input sets; the cache is full of inputs of some of the
    calls when a block begins, of parameters when a call begins, of outputs when it ends."""
    cache = H200.cache_bytes
    warm_calls = max(1, round(warm_share * calls))
    warm = min(inputs, cache // warm_calls)
    other = max(0, outputs - cache) + max(0, parameters - cache)
    moved = [inputs - (warm if call < warm_calls else 0) + other for call in range(calls)]
    work = Work(
        bytes=inputs + outputs + parameters,
        operations=0,
        needed_input_bytes=inputs,
        needed_output_bytes=outputs,
        needed_parameter_bytes=parameters,
    )
    kernel_ms = statistics.median(moved) / H200.bytes_per_s * 1e3 * TRUST["cuda"]
    assert not too_fast(
        kernel_ms=kernel_ms * (1 + 1e-9),
        eager_ms=1e9,
        work=work,
        peaks=H200,
        footprint_bytes=calls * inputs,
    )
