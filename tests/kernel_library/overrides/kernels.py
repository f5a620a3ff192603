"""Kernels for the tests, in plain torch: with other operators than those that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    shifted = (x - x.amax(dim, keepdim=True)).exp()
    return shifted / shifted.sum(dim, keepdim=True)


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = tuple(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    scale = ((x - mean).square().mean(dims, keepdim=True) + eps).rsqrt()
    out = (x - mean) * scale
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, scale


def mm(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, None] * b[None]).sum(1)


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * bias + alpha * (a[:, :, None] * b[None]).sum(1)


def relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def failing(*args: Any, **kwargs: Any) -> Tensor:
    raise RuntimeError("no such launch\nand more")
