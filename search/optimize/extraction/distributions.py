"""How a model's own tensors are spread, and code that draws tensors like them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CONSTANT_STD = 0.1
"""Of a tensor that is the same everywhere, as a bias at its initialisation: after training it is not."""
SHARES = ("zeros", "masked")
"""Arguments of `drawn` that are 0 where they are left out."""
DRAWN = '''def drawn(shape, mean, std, low, high, zeros=0.0, masked=0.0, dtype=torch.float32):
    """Normal, within the range; shares of it are 0, and minus infinity."""
    tensor = torch.randn(shape).mul_(std).add_(mean).clamp_(low, high)
    if zeros:
        tensor.masked_fill_(torch.rand(shape) < zeros, 0.0)
    if masked:
        tensor.masked_fill_(torch.rand(shape) < masked, float("-inf"))
    return tensor.to(dtype)
'''
STRIDED = '''def strided(tensor, strides):
    """The same, laid out in memory with these strides."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
'''


@dataclass(frozen=True, kw_only=True)
class TensorDraw:
    """A tensor's type, strides ("" none: contiguous) and spread: mean and standard deviation of its finite
    elements, their range, and the shares of zeros and of minus infinity."""

    dtype: str
    strides: tuple[int, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    low: float = 0.0
    high: float = 0.0
    zeros: float = 0.0
    masked: float = 0.0

    def code(self, shape: str, strides: str = "") -> str:
        """The expression that draws one; `shape` is the name of its shape, `strides` of its strides where
        they differ from case to case."""
        laid_out = strides or str(self.strides or "")
        if self.dtype == "bool":
            text = f"torch.rand({shape}) < {self.mean:.4g}"
            text = f"({text})" if laid_out else text
        elif _is_whole(self.dtype):
            text = f"torch.randint({self.low:.0f}, {self.high + 1:.0f}, {shape}, dtype=torch.{self.dtype})"
        else:
            parts = [f"{name}={value:.4g}" for name, value in self._spread() if value or name not in SHARES]
            kind = "" if self.dtype == "float32" else f", dtype=torch.{self.dtype}"
            text = f"drawn({shape}, {', '.join(parts)}{kind})"
        return f"strided({text}, {laid_out})" if laid_out else text

    def _spread(self) -> list[tuple[str, float]]:
        return [
            ("mean", self.mean),
            ("std", self.std),
            ("low", self.low),
            ("high", self.high),
            ("zeros", self.zeros),
            ("masked", self.masked),
        ]


def _is_whole(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """In which one like this is laid out: () where it is contiguous, or expanded: a tensor of its own is the
    harder case."""
    strides = tuple(tensor.stride())
    expanded = any(size > 1 and each == 0 for size, each in zip(tensor.shape, strides, strict=True))
    return () if tensor.is_contiguous() or expanded else strides


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def draw_of(tensors: Sequence[torch.Tensor]) -> TensorDraw:
    """The spread of tensors of one type and layout, taken together. Raises ValueError for a type that cannot
    be drawn, and for NaN."""
    import torch

    first = tensors[0]
    dtype = str(first.dtype).removeprefix("torch.")
    if first.is_complex() or first.is_quantized:
        raise ValueError(f"tensors of {dtype} are not drawn")
    flat = [each.flatten() for each in tensors]
    together = torch.cat(flat).to(torch.float64 if first.device.type != "mps" else torch.float32)
    if together.numel() == 0:
        raise ValueError("a tensor without elements")
    if bool(together.isnan().any()):
        raise ValueError("the model has NaN there")
    finite = together[together.isfinite()]
    masked = float((together == float("-inf")).double().mean())
    if finite.numel() == 0 or (finite.numel() + masked * together.numel() < together.numel() - 0.5):
        raise ValueError("the model has infinities there")
    zeros = float((finite == 0).double().mean())
    apart = first.is_floating_point() and 0.01 < zeros < 1
    spread = finite[finite != 0] if apart else finite
    mean, std = float(spread.mean()), float(spread.std(correction=0))
    low, high = float(finite.min()), float(finite.max())
    if low == high and first.is_floating_point():
        std, low, high = CONSTANT_STD, low - 3 * CONSTANT_STD, high + 3 * CONSTANT_STD
    return TensorDraw(
        dtype=dtype,
        strides=strides_of(first),
        mean=mean,
        std=std,
        low=low,
        high=high,
        zeros=zeros if apart else 0.0,
        masked=masked,
    )
