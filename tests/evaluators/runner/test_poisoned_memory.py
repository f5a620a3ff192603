"""What a kernel finds in memory that nobody wrote."""

from __future__ import annotations

import pytest
import torch

from evaluators.runner.poisoned_memory import POISON


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_poison_shows_in_a_maximum_and_in_a_product_with_zero(dtype: torch.dtype) -> None:
    values = torch.tensor([POISON - 2**64]).view(dtype)
    assert (values * 0).isnan().any()
    largest = values[~values.isnan()].amax()  # most instructions ignore NaN
    assert largest.isfinite() and largest > 1e4


def test_poison_is_nan_in_float64_and_no_zero_among_integers() -> None:
    whole = torch.tensor([POISON - 2**64])
    assert whole.view(torch.float64).isnan().all()
    assert all((whole.view(dtype) != 0).all() for dtype in (torch.int64, torch.int32, torch.uint8))
