"""Strided layouts: the memory that a tensor spans, including gaps and repeated elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


SKEW = 512
"""An offset of this many elements preserves alignment, for every dtype and every load."""
SMALL = 2**20
"""Bytes below which a copy is not worthwhile."""


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The number of memory elements from the tensor's first element to its last; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def span_of(tensor: torch.Tensor) -> torch.Tensor:
    """All memory that a tensor spans, flat."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())


def with_span(tensor: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    """A view of `span` with the tensor's layout."""
    return span.as_strided(tensor.shape, tensor.stride(), span.storage_offset())


def clone(
    tensor: torch.Tensor, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A copy with the same layout and the same alignment, on the device and at the dtype given."""
    span, skew = span_of(tensor), tensor.storage_offset() % SKEW
    memory = span.new_empty(skew + len(span), device=device, dtype=dtype)[skew:]
    return with_span(tensor, memory.copy_(span))


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied if its storage is more than twice the memory that it spans: the result of PyTorch's
    `smooth_l1_loss`, for example, is one number in a storage as large as its inputs."""
    reached = extent(tensor.shape, tensor.stride()) * tensor.element_size()
    return clone(tensor) if tensor.untyped_storage().nbytes() > 2 * max(reached, SMALL) else tensor


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor with the same shape, strides and dtype."""
    import torch

    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The tensor in a layout that `Problem.layout` names; tensors of fewer than two dimensions are
    unchanged."""
    if tensor.dim() < 2:
        return tensor
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    wide = tensor.new_zeros((*tensor.shape, 2))
    wide[..., 0] = tensor
    return wide[..., 0]


def holds_all(tensor: torch.Tensor) -> bool:
    """Whether no two elements share memory, so that each may be written."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if step <= reach:
                return False
            reach += (size - 1) * step
    return True


def rewritten(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A tensor with the layout of `tensor` and these values; of values that share a place (`expand`), the
    first one is used. Returns `tensor` itself if its elements overlap in another way, and `values` themselves
    if they are separate memory with the same gapless layout."""
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
    """Whether `values` has the same layout as the tensor, which has no gaps."""
    ways = ((each.dtype, each.stride(), each.storage_offset()) for each in (values, tensor))
    same = len({*ways}) == 1 and values.device == tensor.device
    return same and extent(tensor.shape, tensor.stride()) == tensor.numel() and holds_all(tensor)


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are views of the same memory with the same layout."""
    ways = ((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in (one, other))
    return len({*ways}) == 1 and one.device == other.device


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors with one layout have the same bits, including gaps."""
    import torch

    return torch.equal(*(span_of(each).view(torch.uint8) for each in (one, other)))
