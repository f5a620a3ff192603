"""Strided layouts: gaps, repeated elements and offsets survive a copy and a change of values."""

from __future__ import annotations

import pytest
import torch

from evaluators.reference.inputs.strided_layouts import (
    clone,
    compact,
    extent,
    holds_all,
    rewritten,
    span_of,
    with_span,
)

BASE = torch.arange(60.0)
TENSORS = {
    "contiguous": BASE.view(6, 10),
    "transposed": BASE.view(6, 10).t(),
    "stride 2": BASE.view(6, 10)[:, ::2],
    "offset": BASE[3:].as_strided((4, 5), (10, 1)),
    "expanded": BASE[:6].view(6, 1).expand(6, 4),
    "scalar": BASE[7],
    "empty": BASE[:0],
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_clone_is_laid_out_alike(name: str) -> None:
    tensor = TENSORS[name]
    for dtype in (torch.float32, torch.float64):
        found = clone(tensor, dtype=dtype)
        assert torch.equal(found, tensor.to(dtype))
        assert found.stride() == tensor.stride()
        assert found.storage_offset() == tensor.storage_offset()
        assert found.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    assert len(span_of(tensor)) == extent(tensor.shape, tensor.stride())
    assert torch.equal(with_span(tensor, span_of(tensor) * 2), tensor * 2)


@pytest.mark.parametrize("name", TENSORS)
def test_other_values_in_the_same_layout(name: str) -> None:
    tensor, before = TENSORS[name], BASE.clone()
    found = rewritten(tensor, (tensor + 100).contiguous())
    assert torch.equal(found, tensor + 100)
    assert found.stride() == tensor.stride()
    assert torch.equal(before, BASE), "what was there stays"


def test_values_that_are_laid_out_alike_are_not_copied() -> None:
    plain, values = torch.zeros(3, 4), torch.ones(3, 4)
    assert rewritten(plain, values) is values
    assert rewritten(plain, plain) is not plain, "it is in the tensor's own memory"
    with_gaps = torch.zeros(3, 8)[:, ::2]
    assert rewritten(with_gaps, torch.ones(3, 8)[:, ::2]).untyped_storage().nbytes() == 4 * (2 * 8 + 7)


def test_a_small_part_of_a_large_memory_is_copied() -> None:
    large = torch.arange(2.0**20).view(1024, 1024)
    for part, copied in (
        (large[3, 5], True),
        (large[:8].t(), True),
        (large[::512], False),
        (large[:, 0], False),
    ):
        found = compact(part)
        assert torch.equal(found, part) and found.stride() == part.stride()
        assert (found is not part) == copied, "one with gaps reaches over all of it"
    loss = torch.nn.functional.smooth_l1_loss(large, large + 1)
    assert loss.untyped_storage().nbytes() > 2**20, "else PyTorch has mended it"
    assert compact(loss).untyped_storage().nbytes() < 2**20


def test_overlapping_windows_keep_their_values() -> None:
    windows = BASE.unfold(0, 4, 2)
    assert not holds_all(windows)
    assert rewritten(windows, windows * 2) is windows
