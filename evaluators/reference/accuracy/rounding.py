"""Rounds values once, as a problem's rule allows for its factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def rounded(tensor: torch.Tensor, precision: str, dtype: str) -> torch.Tensor:
    """The tensor rounded to `precision`, in its own dtype. Without a `precision`: in float64, each element
    moved at random by at most half an ulp of `dtype`. Integers and booleans stay as they are."""
    import torch

    if tensor.is_complex():
        return torch.view_as_complex(rounded(torch.view_as_real(tensor), precision, dtype))
    if not tensor.is_floating_point():
        return tensor
    if precision == "tfloat32":
        bits = tensor.float().contiguous().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(tensor.dtype)
    if precision:
        return tensor.to(getattr(torch, precision)).to(tensor.dtype)
    unit: float = torch.finfo(getattr(torch, dtype)).eps / 2
    factors = torch.empty(tensor.shape, dtype=torch.float64, device=tensor.device)
    return factors.uniform_(1 - unit, 1 + unit).mul_(tensor)  # zeros keep their signs
