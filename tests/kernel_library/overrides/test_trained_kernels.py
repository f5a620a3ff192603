"""Library kernels with a backward pass in the place of operators, for calls that need a gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_library import override
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.overrides.library_kernels import library_sources
from kernel_library.overrides.override import Override
from tests.kernel_library.entries import entry, shipped
from tests.kernel_library.overrides.test_library_kernels import ANY, FAMILIES, candidate
from tests.kernel_library.overrides.test_override import calls, reasons

TIMES = 7
"""Kernels here return this many times the right gradient, which shows that they ran."""


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *args: Any) -> Tensor:
        with torch.enable_grad():
            ctx.given = [each.detach() if isinstance(each, Tensor) else each for each in args]
            ctx.leaves = [
                each.requires_grad_()
                for each in ctx.given
                if isinstance(each, Tensor) and each.is_floating_point()
            ]
            ctx.result = function(*ctx.given)
        return ctx.result.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        assert gradient.is_contiguous()
        found = iter(torch.autograd.grad(ctx.result, ctx.leaves, gradient))
        leaves = {id(each) for each in ctx.leaves}
        return None, *(TIMES * next(found) if id(each) in leaves else None for each in ctx.given)


def marked(op: str) -> Callable[..., Tensor]:
    return lambda *args: Marked.apply(FAMILIES[op], *args)


def library(op: str, trained: Callable[..., Any], *, forward: bool = False) -> Override:
    """An override with a kernel for calls that need a gradient and, with `forward`, one for others."""
    functions = {"trained": trained, "forward": FAMILIES[op]}
    return Override(
        library_sources(
            [candidate(op, "forward")] if forward else [],
            load=functions.__getitem__,
            ids={name: f"{id(functions[name]):x}" for name in functions},
            rules=ANY,
            trained=[candidate(op, "trained")],
        )
    )


TARGET = torch.tensor([0, 2, -100, 1])
CALLS: list[tuple[str, Callable[[Tensor], Tensor], tuple[int, ...]]] = [
    ("softmax", lambda x: torch.softmax(x, -1), (3, 4)),
    ("sum", lambda x: x.sum(-1), (3, 4)),
    ("matmul", lambda x: x @ torch.ones(4, 5), (3, 4)),
    ("conv2d", lambda x: functional.conv2d(x, torch.ones(4, 3, 3, 3), None, 2, 1), (2, 3, 8, 8)),
    ("layernorm", lambda x: functional.layer_norm(x, (4,), torch.arange(4.0), torch.ones(4)), (3, 4)),
    ("rmsnorm", lambda x: functional.rms_norm(x, (4,), torch.arange(4.0), eps=0.1), (3, 4)),
    ("attention", lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), (2, 2, 6, 4)),
    *(
        ("cross_entropy", lambda x, r=r: functional.cross_entropy(x, TARGET, reduction=r), (4, 3))  # type: ignore[misc]
        for r in ("none", "mean", "sum")
    ),
]


def gradient_of(call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and the gradient of the sum of its squares, and of its sum."""
    leaf = x.clone().requires_grad_()
    result = call(leaf)
    (gradient,) = torch.autograd.grad(result.square().sum() + result.sum(), leaf)
    return result.detach(), gradient


@pytest.mark.parametrize(("op", "call", "shape"), CALLS)
def test_a_call_that_needs_a_gradient_gets_the_kernels_own(
    op: str, call: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    result, gradient = gradient_of(call, x)
    with library(op, marked(op)) as on:
        found, times = gradient_of(call, x)
        assert calls(on, kernel="trained") == 1, on.report()
        assert not call(x).requires_grad
        with torch.no_grad():
            call(x.clone().requires_grad_())
        assert calls(on, kernel="trained") == 1, "the others need no gradient"
    torch.testing.assert_close(found, result)
    torch.testing.assert_close(times, TIMES * gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["softmax", "layernorm"])
def test_the_gradient_of_a_sum_is_contiguous_for_the_kernel(op: str) -> None:
    """Autograd's is one number, expanded; `Marked` checks what it gets."""
    call = next(call for name, call, _ in CALLS if name == op)
    x = torch.randn(3, 4, requires_grad=True)
    with library(op, marked(op)):
        call(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("op", ["softmax", "layernorm"])
def test_each_kind_of_call_has_its_kernel(op: str) -> None:
    call = next(call for name, call, _ in CALLS if name == op)
    x = torch.randn(3, 4)
    with library(op, marked(op), forward=True) as on:
        call(x)
        assert (calls(on, kernel="forward"), calls(on, kernel="trained")) == (1, 0)
        gradient_of(call, x)
        assert (calls(on, kernel="forward"), calls(on, kernel="trained")) == (1, 1)


@pytest.mark.parametrize(
    ("op", "kernel", "reason"),
    [
        ("softmax", lambda x: torch.softmax(x.detach(), -1), "trained returned a result without a gradient"),
        ("layernorm", lambda x, *args: x[:1] * 2, "trained returned (1, 4) of torch.float32 where"),
        ("layernorm", lambda x, *args: x.nothing, "trained raised AttributeError"),
    ],
)
def test_a_kernel_that_fails_makes_room_for_the_original(
    op: str, kernel: Callable[..., Any], reason: str
) -> None:
    call = next(call for name, call, _ in CALLS if name == op)
    x = torch.randn(3, 4)
    expected = gradient_of(call, x)
    with library(op, kernel) as on:
        for _ in range(2):
            torch.testing.assert_close(gradient_of(call, x), expected)
        assert not calls(on, kernel="trained")
        assert any(each.startswith(reason) for each in reasons(on)), on.report()


def test_what_no_kernel_takes_is_the_originals() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    call = next(call for name, call, _ in CALLS if name == "layernorm")
    wide = lambda x: functional.layer_norm(x, (4,))  # noqa: E731
    expected = gradient_of(wide, x)
    with library("layernorm", marked("layernorm")) as on:
        torch.testing.assert_close(gradient_of(wide, x), expected)
        assert reasons(on) == {"no kernel for layernorm of float64 3x4 on cpu": 1}
        gradient_of(call, x.float())
        assert calls(on, kernel="trained") == 1


@pytest.mark.slow
@pytest.mark.parametrize("op", ["softmax", "layernorm"])
def test_compiled_code_has_the_original_and_its_gradient(op: str) -> None:
    call = next(call for name, call, _ in CALLS if name == op)
    x = torch.randn(3, 4)
    expected = gradient_of(call, x)
    with library(op, marked(op)) as on:
        torch.testing.assert_close(gradient_of(torch.compile(call, backend="aot_eager"), x), expected)
        assert not calls(on, kernel="trained")


KERNEL = """import torch


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        result, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return result

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        given = gradient, x, x.shape[-1:], mean, rstd, weight, bias, [True, True, True]
        found = torch.ops.aten.native_layer_norm_backward(*given)
        return (*found[:2], 7 * found[2], None)


def layernorm(x, weight=None, bias=None, eps=1e-5, dims=1):
    return LayerNorm.apply(x, weight, bias, eps)
"""


@pytest.mark.parametrize(("speedup", "taken"), [(1.5, 1), (0.9, 0)])
def test_an_entry_that_was_judged_with_its_backward_pass(speedup: float, taken: int, tmp_path: Path) -> None:
    """It takes effect in a model that learns, if it was faster than eager PyTorch for both passes. Its
    gradient of the bias says that it ran."""
    problem = replace(shipped("library/layernorm", device="cpu", backward=True), overrides={"rows": 4})
    known = {"op": "layernorm", "function": "layernorm", "shapes": ("...x*",), "dtypes": ("float32",)}
    library = FolderLibrary(tmp_path, min_speedup=0)
    library.add(entry(problem, KERNEL, speedup, **known))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1))
    x = torch.randn(5, 8)
    expected = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    with override(root=tmp_path, device="cpu", least_elements=0) as on:
        found = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
        entry_id = next(each.id for each in library.entries() if not each.name)
        assert calls(on, kernel=entry_id) == taken, on.report()
    for number, (own, right) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(own, right * (7 if taken and number == 3 else 1))
