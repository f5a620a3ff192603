"""Maps a call of an operator to a call of a library kernel, one row per operator: `INTERFACES`.

A library kernel has its operation's interface, which is narrower than the operator's: softmax works over the
last dimension. Each row has two functions. One converts the operator's arguments to the kernel's, or returns
the reason why it cannot. The other converts the kernel's result to the operator's. Neither may read tensor
values.

Composite operators (layer_norm, rms_norm, cross_entropy_loss, scaled_dot_product_attention) are here for
calls without gradients, and for kernels with their own backward pass: the operators that implement them also
return values for the backward (means, logarithms of sums), which the kernels do not. Operations without a
torch operator have no row: rotary, SwiGLU, conv2d_relu_maxpool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One row; `result` takes the kernel's result, then the operator's arguments."""

    op: str
    arguments: Callable[..., tuple[Any, ...] | str]
    result: Callable[..., Any]


def just(result: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the kernel's result unchanged."""
    return result


def softmax_arguments(x: Tensor, dim: int, half_to_float: bool) -> tuple[Any, ...] | str:
    """Over the last dimension."""
    if x.dim() == 0 or dim % x.dim() != x.dim() - 1:
        return "not over the last dimension"
    return "from half to float" if half_to_float else (x,)


def sum_arguments(
    x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> tuple[Any, ...] | str:
    """Over the last dimension, in the input's type."""
    if dim is None or len(dim) != 1 or x.dim() == 0 or dim[0] % x.dim() != x.dim() - 1:
        return "not over the last dimension alone"
    return (x,) if dtype in (None, x.dtype) else "into another type"


def sum_result(result: Tensor, x: Tensor, dim: Any, keepdim: bool = False, **kwargs: Any) -> Tensor:
    """Restores the dimension for `keepdim`."""
    return result.unsqueeze(-1) if keepdim else result


def mm_arguments(a: Tensor, b: Tensor) -> tuple[Any, ...] | str:
    """Unchanged."""
    return a, b


def addmm_arguments(
    bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> tuple[Any, ...] | str:
    """In float32 only: smaller types would round the product before the sum."""
    if a.dtype != torch.float32:
        return "the product would be rounded before the sum"
    return (a, b) if beta == 1 and alpha == 1 else "scaled"


def addmm_result(result: Tensor, bias: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Adds the bias."""
    return result.add_(bias)


def convolution_arguments(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tuple[Any, ...] | str:
    """2D convolution of a batch, with the same stride and padding in both directions."""
    if x.dim() != 4 or transposed or groups != 1 or any(each != 1 for each in dilation):
        return "not a plain convolution of a batch of images"
    if len({*stride}) != 1 or len({*padding}) != 1:
        return "different strides or paddings per direction"
    return x, weight, bias, stride[0], padding[0]


def layer_norm_arguments(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> tuple[Any, ...] | str:
    """Unchanged."""
    return x, weight, bias, eps, len(normalized_shape)


def rms_norm_arguments(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Any, ...] | str:
    """Over the last dimension, with an explicit eps."""
    if len(normalized_shape) != 1:
        return "over several dimensions"
    return "without eps" if eps is None else (x, weight, eps)


def attention_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...] | str:
    """Causal self-attention, also of groups of queries."""
    if mask is not None or not causal or dropout != 0:
        return "not plain causal attention"
    grouped = enable_gqa and q.dim() == k.dim() and q.shape[:1] + q.shape[2:] == k.shape[:1] + k.shape[2:]
    if q.dim() != 4 or not (q.shape == k.shape or grouped) or k.shape != v.shape:
        return "not [batch, heads, length, dim] for all"
    return (q, k, v) if scale in (None, q.shape[-1] ** -0.5) else "not the default scale"


def cross_entropy_arguments(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Any, ...] | str:
    """Rows of logits with one class each, in float32 only: smaller types would round the losses before their
    sum."""
    if logits.dim() != 2 or target.dim() != 1 or weight is not None or label_smoothing != 0:
        return "not rows of logits with one class each"
    if logits.dtype != torch.float32:
        return "the losses would be rounded before their sum"
    return logits, target, ignore_index


def cross_entropy_result(
    result: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Sums or averages the losses, as `reduction` says."""
    if reduction == 0:
        return result
    return result.sum() if reduction == 2 else result.sum() / (target != ignore_index).sum()


INTERFACES = {
    "aten._softmax.default": Interface(op="softmax", arguments=softmax_arguments, result=just),
    "aten.sum.dim_IntList": Interface(op="sum", arguments=sum_arguments, result=sum_result),
    "aten.mm.default": Interface(op="matmul", arguments=mm_arguments, result=just),
    "aten.addmm.default": Interface(op="matmul", arguments=addmm_arguments, result=addmm_result),
    "aten.convolution.default": Interface(op="conv2d", arguments=convolution_arguments, result=just),
    "aten.layer_norm.default": Interface(op="layernorm", arguments=layer_norm_arguments, result=just),
    "aten.rms_norm.default": Interface(op="rmsnorm", arguments=rms_norm_arguments, result=just),
    "aten.scaled_dot_product_attention.default": Interface(
        op="attention", arguments=attention_arguments, result=just
    ),
    "aten.cross_entropy_loss.default": Interface(
        op="cross_entropy", arguments=cross_entropy_arguments, result=cross_entropy_result
    ),
}
