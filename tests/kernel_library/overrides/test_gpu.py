"""The library's kernels in the place of operators on a GPU: in eager, compiled and in a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_library import override
from tests.kernel_library.overrides.test_override import calls

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
ROWS = (4096, 1024)


@pytest.mark.parametrize(
    ("operator", "function", "dtype"),
    [
        ("aten._softmax.default", lambda x: torch.softmax(x, -1), torch.float32),
        ("aten._softmax.default", lambda x: torch.softmax(x, -1), torch.bfloat16),
        ("aten.sum.dim_IntList", lambda x: x.sum(-1), torch.float32),
        ("aten.mm.default", lambda x: x @ x.mT, torch.float32),
    ],
)
def test_forward_and_backward(
    operator: str, function: Callable[[Tensor], Tensor], dtype: torch.dtype, tmp_path: Path
) -> None:
    x = torch.randn(ROWS, device="cuda", dtype=dtype, requires_grad=True)
    expected = function(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    with override(root=tmp_path, faster=False) as on:
        found = function(x)
        (mine,) = torch.autograd.grad(found.square().sum(), x)
        assert calls(on, operator) >= 1, on.report()
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    torch.testing.assert_close(mine, gradient, rtol=tolerance, atol=tolerance * float(gradient.abs().max()))


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("aten.layer_norm.default", lambda x: functional.layer_norm(x, ROWS[1:])),
        ("aten.rms_norm.default", lambda x: functional.rms_norm(x, ROWS[1:], eps=1e-6)),
    ],
)
def test_without_gradients(operator: str, function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    x = torch.randn(ROWS, device="cuda")
    expected = function(x)
    with override(root=tmp_path, faster=False) as on, torch.no_grad():
        torch.testing.assert_close(function(x), expected, rtol=1e-4, atol=1e-4)
        assert calls(on, operator) == 1, on.report()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str, tmp_path: Path) -> None:
    x = torch.randn(ROWS, device="cuda")
    expected = torch.softmax(x * 2, -1) + 1
    with override(root=tmp_path, faster=False) as on, torch.no_grad():
        compiled = torch.compile(lambda x: torch.softmax(x * 2, -1) + 1, mode=mode)
        for _ in range(4):
            found = compiled(x).clone()
        assert calls(on, "aten._softmax.default") >= 1
    torch.testing.assert_close(found, expected)


def test_a_graph(tmp_path: Path) -> None:
    x = torch.randn(ROWS, device="cuda")
    with override(root=tmp_path, faster=False) as on:
        torch.softmax(x, -1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch.softmax(x, -1)
        assert calls(on, "aten._softmax.default") == 2
    x.copy_(torch.randn(ROWS, device="cuda"))
    graph.replay()
    torch.testing.assert_close(out, torch.softmax(x, -1))
