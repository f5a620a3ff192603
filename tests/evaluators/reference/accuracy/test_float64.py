"""The reference in float64, where PyTorch's own kernels do not follow the formula."""

from __future__ import annotations

import math

import pytest
import torch

from evaluators.reference.accuracy.float64 import DoubleReference


@pytest.mark.parametrize("eps", [1e-6, None])
def test_an_rms_norm_follows_its_formula(eps: float | None) -> None:
    torch.manual_seed(0)
    norm = torch.nn.RMSNorm([3, 5], eps=eps)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(4, 3, 5)
    before = torch.rms_norm
    (found,), _ = DoubleReference(norm).run([x], changes_inputs=False)
    assert torch.rms_norm is before
    assert found.dtype is torch.float64
    torch.testing.assert_close(found.float(), norm(x))


def test_an_infinity_makes_the_rest_of_its_row_zero() -> None:
    x = torch.randn(2, 7)
    x[0, 3] = math.inf
    (found,), _ = DoubleReference(torch.nn.RMSNorm(7)).run([x], changes_inputs=False)
    assert found[0].isnan().tolist() == [n == 3 for n in range(7)]
    assert not found[0].nan_to_num(0.0).any() and found[1].isfinite().all()
