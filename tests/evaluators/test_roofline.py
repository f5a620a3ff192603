"""Ceilings, counted work, floors: what is physically possible must never be called impossible."""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from evaluators import roofline
from evaluators.reference import tensors_of
from evaluators.roofline import TRUST, Ceilings, Work, ceilings_of, count, measure_ceilings, too_fast

MIB = 2**20
H200 = Ceilings(
    device="cuda",
    bytes_per_s=4.3e12,
    cache_bytes=60 * MIB,
    operations_per_s={"float32": 50e12, "tf32": 400e12, "bfloat16": 790e12, "float64": 60e12},
)
MATMUL = Work(bytes=3 * 4 * 4096**2, operations=2 * 4096**3)
"""4096³ in float32."""


class Reference(nn.Module):
    """A reference made of a function, and of a layer that the function may use."""

    def __init__(self, function: Callable[..., Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs) if self.layer is None else self.function(self.layer, *inputs)


def work_of(function: Callable[..., Any], *inputs: Any, layer: nn.Module | None = None) -> Work:
    """The counted work, with a check that counting leaves the inputs alone."""
    module = Reference(function, layer)
    values = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
    with torch.no_grad():
        outputs = tensors_of(module(*values))
    before = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
    work = count(module, values, outputs)
    for value, kept in zip(values, before, strict=True):
        assert torch.equal(value, kept) if isinstance(value, torch.Tensor) else value == kept
    assert all(p.grad is None for p in module.parameters())
    return work


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# Counting


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_dense_matmul_needs_all_that_it_does(dtype: torch.dtype) -> None:
    work = work_of(torch.matmul, torch.randn(32, 64, dtype=dtype), torch.randn(64, 16, dtype=dtype))
    size = dtype.itemsize
    assert work.operations == work.needed_operations == 2 * 32 * 64 * 16
    assert work.needed_input_bytes == (32 * 64 + 64 * 16) * size
    assert work.needed_output_bytes == 32 * 16 * size
    assert work.bytes == work.needed_input_bytes + work.needed_output_bytes


def test_a_layer_counts_its_parameters() -> None:
    layer = nn.Conv2d(3, 8, 5)
    work = work_of(lambda conv, x: conv(x), torch.randn(2, 3, 20, 20), layer=layer)
    assert work.operations == work.needed_operations == 2 * (2 * 8 * 16 * 16) * (3 * 5 * 5)
    assert work.needed_parameter_bytes == 4 * (8 * 3 * 5 * 5 + 8)
    assert work.bytes == 4 * (2 * 3 * 20 * 20 + 2 * 8 * 16 * 16) + work.needed_parameter_bytes


def test_zero_factors_need_no_work() -> None:
    n = 64
    vector, matrix = torch.randn(n), torch.randn(n, n)
    diagonal = work_of(lambda v, m: torch.diag(v) @ m, vector, matrix)
    assert (diagonal.operations, diagonal.needed_operations) == (2 * n**3, 2 * n**2)
    triangular = work_of(torch.matmul, matrix.tril(), matrix.tril())
    # row i of the result takes i + 1 products for its columns up to i, and so on
    assert triangular.needed_operations == sum(2 * (k + 1) * (n - k) for k in range(n))


def test_what_the_outputs_do_not_depend_on_is_not_needed() -> None:
    layer = nn.Linear(64, 128)
    work = work_of(lambda linear, x: linear(x)[:, -1], torch.randn(2, 50, 64), layer=layer)
    assert work.needed_input_bytes == 2 * 64 * 4
    assert work.needed_operations == work.operations // 50
    rows = torch.arange(7)
    table = work_of(lambda e, i: e(i), rows, layer=nn.Embedding(1000, 16))
    assert table.needed_parameter_bytes <= 7 * 16 * 4 < table.bytes
    assert table.needed_input_bytes == 0
    assert work_of(lambda x, i: x[i], torch.randn(1000, 16), rows).needed_input_bytes == 7 * 16 * 4


@pytest.mark.parametrize("fused", [True, False])
def test_masked_attention_needs_about_half(fused: bool) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if fused:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mask = torch.ones(len(q[0, 0]), len(k[0, 0]), dtype=torch.bool).triu(1)
        return torch.softmax((q @ k.mT / 8).masked_fill(mask, float("-inf")), -1) @ v

    work = work_of(attention, *(torch.randn(1, 2, 128, 64) for _ in range(3)))
    both_products = 2 * 2 * 2 * 128 * 128 * 64
    assert work.operations == (both_products * 129 / 256 if fused else both_products)
    assert 0.5 < work.needed_operations / both_products < 0.7


def test_what_a_given_mask_leaves_out_is_no_work() -> None:
    seen = torch.rand(128, 96) < 0.3
    hidden = torch.zeros(128, 96).masked_fill(~seen, float("-inf"))
    query, key = torch.randn(1, 2, 128, 64), torch.randn(1, 2, 96, 64)
    for mask in (seen, hidden):
        work = work_of(functional.scaled_dot_product_attention, query, key, key, mask)
        assert work.operations == pytest.approx(2 * 2 * 2 * int(seen.sum()) * 64, abs=2)
    later = work_of(lambda q, k: functional.scaled_dot_product_attention(q, k, k) @ k.mT, query, key)
    assert later.operations == 3 * 2 * 2 * 128 * 96 * 64


def test_views_and_repeated_elements_need_not_be_written() -> None:
    x = torch.randn(100, 50)
    for view in (lambda x: x, lambda x: x.t(), lambda x: x[:, 3:5]):
        work = work_of(view, x)
        assert (work.needed_output_bytes, work.needed_input_bytes) == (0, 0)
    assert work_of(lambda x: x.sum(1, keepdim=True).expand_as(x), x).needed_output_bytes == 100 * 4
    assert work_of(lambda x: (x, x + 1), x).needed_output_bytes == 100 * 50 * 4


def test_a_reference_that_works_in_place_is_counted() -> None:
    assert work_of(lambda x: x.mul_(2) @ x, torch.randn(16, 16)).needed_operations == 2 * 16**3


def test_odd_references_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    def odd(x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise KeyError("odd")
        return x @ x

    work = work_of(odd, torch.randn(16, 16))
    assert (work.operations, work.needed_operations, work.needed_input_bytes) == (2 * 16**3, 0, 0)
    assert "KeyError" in caplog.text


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x.argmax(-1), [torch.ones(4, 4)]),
        (lambda x: x * 2, [torch.arange(4)]),
        (torch.no_grad()(lambda x: x @ x), [torch.ones(4, 4)]),
        (lambda x: torch.zeros(3), [torch.ones(4, 4)]),
    ],
)
def test_without_a_gradient_no_input_is_needed(
    function: Callable[..., Any], inputs: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    work = work_of(function, *inputs)
    assert (work.needed_input_bytes, work.needed_operations) == (0, 0)
    assert not caplog.records


# Floors


def test_the_floor_is_the_larger_of_memory_and_compute() -> None:
    found = roofline.roofline(MATMUL, H200, "float32", "kernelbench")
    assert found.bound == "compute"
    assert found.floor_ms == pytest.approx(0.174, rel=0.01)
    stream = Work(bytes=2 * 4 * 4096 * 65536, operations=0)
    found = roofline.roofline(stream, H200, "float32", "strict")
    assert found.bound == "memory"
    assert found.floor_ms == pytest.approx(0.499, rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "peak"),
    [
        ("float32", "kernelbench", 790e12),
        ("float32", "kernelbench_v02", 790e12),
        ("bfloat16", "strict", 790e12),
        ("float16", "strict", 790e12),
        ("float32", "strict", 790e12 / 3),
        ("float64", "strict", 60e12),
        ("float64", "kernelbench", 790e12),
    ],
)
def test_the_peak_is_that_of_the_precision_that_passes(dtype: str, tolerance: str, peak: float) -> None:
    assert H200.peak(dtype, tolerance) == peak


def test_a_time_that_memory_does_not_allow_is_refused() -> None:
    size = 4 * 4096 * 65536
    work = Work(bytes=2 * size, operations=0, needed_input_bytes=size, needed_output_bytes=size)
    many = 8 * size
    claims = {0.665: False, 0.499: False, 0.44: False, 0.40: True, 0.05: True}
    for kernel_ms, refused in claims.items():
        reason = too_fast(kernel_ms=kernel_ms, eager_ms=1.05, work=work, ceilings=H200, footprint_bytes=many)
        assert bool(reason) is refused
        if reason:
            assert "problem.floor=false" in reason and f"{kernel_ms:.4g} ms" in reason


def test_a_time_that_arithmetic_does_not_allow_is_refused() -> None:
    work = replace(MATMUL, needed_operations=MATMUL.operations)
    for kernel_ms, refused in {0.174: False, 0.045: False, 0.035: True}.items():
        reason = too_fast(kernel_ms=kernel_ms, eager_ms=2.7, work=work, ceilings=H200, footprint_bytes=0)
        assert bool(reason) is refused


def test_a_floor_that_eager_beats_is_no_floor() -> None:
    work = Work(bytes=10**9, operations=0, needed_input_bytes=10**9)
    claim = {"kernel_ms": 0.01, "work": work, "ceilings": H200, "footprint_bytes": 10**11}
    assert too_fast(eager_ms=1.0, **claim)  # type: ignore[arg-type]
    assert too_fast(eager_ms=0.1, **claim) is None  # type: ignore[arg-type]


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
        ceilings=H200,
        footprint_bytes=calls * inputs,
    )


# Ceilings


def test_the_ceilings_of_this_cpu(tmp_path: Path) -> None:
    cache = tmp_path / "deeper" / "ceilings.json"
    precision = torch.get_float32_matmul_precision()
    start = time.monotonic()
    found = ceilings_of("cpu", cache)
    assert time.monotonic() - start < 20  # 2.5 s on two cores of an EPYC that are not busy
    assert found.bytes_per_s > 1e9
    assert found.operations_per_s.keys() == {"float32", "float64", "bfloat16"}
    assert found.operations_per_s["float32"] > found.operations_per_s["float64"] > 1e9
    assert found.cache_bytes >= 2**18
    assert torch.get_float32_matmul_precision() == precision
    start = time.monotonic()
    assert ceilings_of("cpu", cache) == found
    assert time.monotonic() - start < 0.5
    assert [path.name for path in cache.parent.iterdir()] == ["ceilings.json"]


def fake_measurements(monkeypatch: pytest.MonkeyPatch, *found: Ceilings) -> list[Ceilings]:
    left = list(found)
    monkeypatch.setattr(roofline, "measure_ceilings", lambda device: left.pop(0))
    return left


def test_measuring_again_keeps_the_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(H200, device="cpu", bytes_per_s=1e9, operations_per_s={"float32": 2e9})
    fast = replace(slow, bytes_per_s=2e9, operations_per_s={"float32": 1e9, "float64": 1e9})
    left = fake_measurements(monkeypatch, slow, fast)
    cache = tmp_path / "ceilings.json"
    assert ceilings_of("cpu", cache) == slow
    better = ceilings_of("cpu", cache, again=True)
    assert better.bytes_per_s == 2e9
    assert better.operations_per_s == {"float32": 2e9, "float64": 1e9}
    assert ceilings_of("cpu", cache) == better
    assert not left


@pytest.mark.parametrize(
    "broken",
    ["", "{", "[]", "null", '{"KEY": 3}', '{"KEY": {"device": "cpu"}}', '{"KEY": {"bytes_per_s": NaN}}'],
)
def test_a_broken_cache_is_a_miss(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "ceilings.json"
    fake_measurements(monkeypatch, H200, H200)
    ceilings_of("cpu", cache)
    (key,) = json.loads(cache.read_text())
    cache.write_text(broken.replace("KEY", key))
    assert ceilings_of("cpu", cache) == H200
    assert json.loads(cache.read_text())[key]["bytes_per_s"] == H200.bytes_per_s


def test_other_machines_stay_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "ceilings.json"
    cache.write_text('{"another machine": {}}')
    fake_measurements(monkeypatch, H200)
    ceilings_of("cpu", cache)
    assert "another machine" in json.loads(cache.read_text())


def test_a_cache_that_cannot_be_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_measurements(monkeypatch, H200, H200)
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert ceilings_of("cpu", tmp_path / "file" / "ceilings.json") == H200
    assert "cannot be kept" in caplog.text
    assert ceilings_of("cpu", None) == H200


def test_the_default_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert roofline.default_cache() == tmp_path / "ideatree" / "ceilings.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    assert roofline.default_cache() == Path("/somewhere/.cache/ideatree/ceilings.json")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_ceilings_that_no_measurement_gives_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite and positive"):
        replace(H200, bytes_per_s=value)
    with pytest.raises(ValueError, match="finite and positive"):
        replace(H200, operations_per_s={"float32": value})
    with pytest.raises(ValueError, match="float32"):
        replace(H200, operations_per_s={})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_ceilings_of_this_gpu() -> None:
    measure_ceilings("cuda")  # loads the libraries
    start = time.monotonic()
    found = measure_ceilings("cuda")
    took_s = time.monotonic() - start
    print(f"{took_s:.2f} s for {found}")
    rates = found.operations_per_s
    assert took_s < 1.5
    assert torch.cuda.memory_reserved() < 2**30
    assert rates["bfloat16"] > rates["tf32"] > rates["float32"]
    assert found.cache_bytes > MIB
    if "H200" in torch.cuda.get_device_name(0):
        assert 3.5e12 < found.bytes_per_s < 4.9e12
        assert 650e12 < max(rates["bfloat16"], rates["float16"]) < 990e12


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_no_gpu_memory_stays_behind() -> None:
    x = torch.randn(2048, 2048, device="cuda")
    # The first products give cuBLAS a workspace, one for each thread: ours and autograd's.
    product = x.requires_grad_() @ x
    torch.autograd.grad(product.sum(), x)
    x, product = x.detach(), product.detach()
    before = torch.cuda.memory_allocated()
    work = count(Reference(torch.matmul).cuda(), [x, x.clone()], [product])
    assert work.needed_operations == pytest.approx(2 * 2048**3, rel=1e-4)  # a drawn number may be 0
    assert torch.cuda.memory_allocated() - before < 2 * MIB
