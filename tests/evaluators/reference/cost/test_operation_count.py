"""The counted work of references: what an honest kernel can leave out must never be called needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from evaluators.reference.containers import tensors_of
from evaluators.reference.cost import operation_count
from evaluators.reference.cost.operation_count import Work, count

MIB = 2**20


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


def test_a_backward_pass_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x @ x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            for _ in range(100):
                time.sleep(0.01)
                gradient = gradient + 1
            return gradient

    monkeypatch.setattr(operation_count, "LONGEST_S", 0.1)
    x = torch.rand(20, 20)
    work = work_of(Slow.apply, x)
    assert (work.bytes, work.operations) == (2 * x.nbytes, 2 * 20**3)
    assert (work.needed_operations, work.needed_input_bytes) == (0, 0)
    assert "it takes more than" in caplog.text


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


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.int8, torch.uint8, torch.complex64], ids=str
)
def test_products_of_other_numbers_are_counted_too(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    left, right, more = ((10 * torch.randn(3, 8, 8)).to(dtype) for _ in range(3))
    assert work_of(torch.mm, left[0], right[0]).operations == 2 * 8**3
    assert work_of(torch.addmm, more[0], left[0], right[0]).operations == 2 * 8**3
    assert work_of(torch.bmm, left, right).operations == work_of(torch.baddbmm, more, left, right).operations
    assert not caplog.records, caplog.text
