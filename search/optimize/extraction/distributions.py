"""The value distributions of a model's tensors, and code that draws tensors like them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""The label that PyTorch's losses ignore."""
CONSTANT_STD = 0.1
"""Standard deviation for a constant tensor, such as an initial bias, because training would change it."""
SHARES = ("zeros", "masked")
"""Arguments of `drawn` that default to 0."""
DRAWN = '''def drawn(shape, mean, std, low, high, zeros=0.0, masked=0.0, dtype=torch.float32):
    """Normally distributed and clamped to a range; the given shares of elements are 0 and minus infinity."""
    tensor = torch.randn(shape).mul_(std).add_(mean).clamp_(low, high)
    if zeros:
        tensor.masked_fill_(torch.rand(shape) < zeros, 0.0)
    if masked:
        tensor.masked_fill_(torch.rand(shape) < masked, float("-inf"))
    return tensor.to(dtype)
'''
STRIDED = '''def strided(tensor, strides):
    """A copy with these strides."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
'''


@dataclass(frozen=True, kw_only=True)
class TensorDistribution:
    """A tensor's dtype, strides (empty: contiguous) and distribution: mean, standard deviation and range of
    its finite elements, and the shares of zeros and of minus infinity. Of integers, `masked` is the share of
    labels that a loss ignores."""

    dtype: str
    strides: tuple[int, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    low: float = 0.0
    high: float = 0.0
    zeros: float = 0.0
    masked: float = 0.0

    def code(self, shape: str, strides: str = "") -> str:
        """The expression that draws such a tensor. `shape` is the name of its shape, `strides` that of its
        strides where they differ between cases."""
        laid_out = strides or str(self.strides or "")
        if self.dtype == "bool":
            text = f"torch.rand({shape}) < {self.mean:.4g}"
            text = f"({text})" if laid_out else text
        elif self.dtype.startswith(("int", "uint")):
            text = f"torch.randint({self.low:.0f}, {self.high + 1:.0f}, {shape}, dtype=torch.{self.dtype})"
            if self.masked:
                text += f".masked_fill_(torch.rand({shape}) < {self.masked:.4g}, {IGNORED})"
        else:
            figures = {name: getattr(self, name) for name in ("mean", "std", "low", "high", *SHARES)}
            parts = [f"{name}={value:.4g}" for name, value in figures.items() if value or name not in SHARES]
            kind = "" if self.dtype == "float32" else f", dtype=torch.{self.dtype}"
            text = f"drawn({shape}, {', '.join(parts)}{kind})"
        return f"strided({text}, {laid_out})" if laid_out else text


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides to draw a tensor with; () for a contiguous one, and for an expanded one."""
    strides = tuple(tensor.stride())
    expanded = any(size > 1 and each == 0 for size, each in zip(tensor.shape, strides, strict=True))
    return () if tensor.is_contiguous() or expanded else strides


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def distribution_of(tensors: Sequence[torch.Tensor]) -> TensorDistribution:
    """The joint distribution of tensors of one dtype and layout. Raises ValueError for complex and quantized,
    empty and non-finite tensors (minus infinity is allowed)."""
    import torch

    first = tensors[0]
    dtype = str(first.dtype).removeprefix("torch.")
    if first.is_complex() or first.is_quantized:
        raise ValueError(f"tensors of {dtype} cannot be drawn")
    flat = [each.flatten() for each in tensors]
    together = torch.cat(flat).to(torch.float64 if first.device.type != "mps" else torch.float32)
    if together.numel() == 0:
        raise ValueError("a tensor there has no elements")
    if bool(together.isnan().any()):
        raise ValueError("the model has NaN there")
    masked = float((together == float("-inf")).double().mean())
    if dtype == "int64" and bool((together >= 0).any()):
        labels = together[together != IGNORED]
        masked, together = 1 - labels.numel() / together.numel(), labels
    finite = together[together.isfinite()]
    lost = 0.0 if dtype == "int64" else masked * together.numel()
    if finite.numel() == 0 or (finite.numel() + lost < together.numel() - 0.5):
        raise ValueError("the model has infinities there")
    zeros = float((finite == 0).double().mean())
    apart = first.is_floating_point() and 0.01 < zeros < 1
    spread = finite[finite != 0] if apart else finite
    mean, std = float(spread.mean()), float(spread.std(correction=0))
    low, high = float(finite.min()), float(finite.max())
    if low == high and first.is_floating_point():
        std, low, high = CONSTANT_STD, low - 3 * CONSTANT_STD, high + 3 * CONSTANT_STD
    return TensorDistribution(
        dtype=dtype,
        strides=strides_of(first),
        mean=mean,
        std=std,
        low=low,
        high=high,
        zeros=zeros if apart else 0.0,
        masked=masked,
    )
