"""Strided layouts: the memory that a tensor reaches over, gaps and repeated elements included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


SKEW = 512
"""Elements after which addresses are as well aligned as before, for every dtype and every load."""
SMALL = 2**20
"""Bytes that are not worth a copy."""


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first element of such a tensor to its last; 0 where it has none."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def span_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that a tensor reaches over, flat."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())


def with_span(tensor: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    """A view of `span` that is laid out as the tensor is."""
    return span.as_strided(tensor.shape, tensor.stride(), span.storage_offset())


def clone(
    tensor: torch.Tensor, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A copy in memory of its own, in the same layout and as far from an aligned address, at a dtype."""
    span, skew = span_of(tensor), tensor.storage_offset() % SKEW
    memory = span.new_empty(skew + len(span), device=device, dtype=dtype)[skew:]
    return with_span(tensor, memory.copy_(span))


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied where it alone would keep more than twice the memory that it reaches over: a loss of
    PyTorch's (`smooth_l1_loss`) is one number in memory as large as its inputs."""
    reached = extent(tensor.shape, tensor.stride()) * tensor.element_size()
    return clone(tensor) if tensor.untyped_storage().nbytes() > 2 * max(reached, SMALL) else tensor


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """One of the same form that has no elements in memory."""
    import torch

    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The tensor in a layout that `Problem.layout` names; one of less than two dimensions as it is."""
    if tensor.dim() < 2:
        return tensor
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    wide = tensor.new_zeros((*tensor.shape, 2))
    wide[..., 0] = tensor
    return wide[..., 0]


def holds_all(tensor: torch.Tensor) -> bool:
    """Whether every element has a place of its own in memory, so that each may be written."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if step <= reach:
                return False
            reach += (size - 1) * step
    return True


def rewritten(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A tensor in the layout of `tensor` with these values; of those that share a place in it (`expand`)
    the first counts. Where places overlap otherwise, the tensor itself; the values themselves, not copied,
    where they are laid out like it, without gaps, in memory of their own."""
    if values.data_ptr() != tensor.data_ptr() and _is_laid_out_like(values, tensor):
        return values
    repeated = [axis for axis, step in enumerate(tensor.stride()) if step == 0 and tensor.shape[axis] > 1]
    found = clone(tensor)
    places = found
    for axis in repeated:
        places, values = places.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    if not holds_all(places):
        return tensor
    places.copy_(values)
    return found


def _is_laid_out_like(values: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether it could stand for the tensor as it is, one without gaps."""
    ways = ((each.dtype, each.stride(), each.storage_offset()) for each in (values, tensor))
    same = len({*ways}) == 1 and values.device == tensor.device
    return same and extent(tensor.shape, tensor.stride()) == tensor.numel() and holds_all(tensor)


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are one tensor: the same memory in the same way."""
    ways = ((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in (one, other))
    return len({*ways}) == 1 and one.device == other.device
