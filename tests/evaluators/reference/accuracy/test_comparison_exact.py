"""What has to be equal under every profile: integers, and where numbers are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from evaluators.records.problem import TOLERANCES
from evaluators.reference.accuracy.comparison import compare
from tests.evaluators.reference.accuracy.comparisons import FLOATS, INF, NAN, accepts


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_is_wrong_where_the_reference_is(
    tolerance: str, dtype: torch.dtype, value: float
) -> None:
    ref = torch.randn(100, dtype=torch.float64)
    out = ref.to(dtype, copy=True)
    out[3] = value
    found = compare(out, ref, ref.to(dtype), tolerance)
    assert found.problem.startswith("1 of 100 elements differ")
    assert found.error == INF


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("wanted", [NAN, INF, -INF])
@pytest.mark.parametrize("given", [NAN, INF, -INF, 0.0])
def test_where_the_reference_is_not_finite_the_same_is_asked(
    tolerance: str, wanted: float, given: float
) -> None:
    """NaN is no wildcard: masked attention has -inf where a lazy kernel may leave the poison."""
    ref = torch.randn(100, dtype=torch.float64)
    ref[3] = wanted
    out = ref.float()
    out[3] = given
    same = given == wanted or (wanted != wanted and not math.isfinite(given))
    assert accepts(out, ref, tolerance) is same


@pytest.mark.parametrize("wanted", [NAN, INF])
def test_products_of_infinities_are_judged_only_where_finite(wanted: float) -> None:
    ref = torch.randn(100, dtype=torch.float64)
    ref[3] = wanted
    for out, right in (
        (ref.float(), True),
        (ref.float().nan_to_num(0.0, 0.0), True),
        (ref.float() * NAN, False),
    ):
        assert (not compare(out, ref, ref.float(), "strict", products=True).problem) is right


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_an_unwritten_output_fails(tolerance: str) -> None:
    poison = torch.full((400,), 255, dtype=torch.uint8)
    ref = torch.randn(100, dtype=torch.float64)
    assert not accepts(poison.view(torch.float32), ref, tolerance)
    assert not accepts(poison.view(torch.bool), torch.ones(400, dtype=torch.bool), tolerance)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_where_eager_overflows_the_kernel_may_too(tolerance: str) -> None:
    ref = torch.tensor([1.0, 1e6], dtype=torch.float64)
    eager = ref.to(torch.float16)
    assert torch.isinf(eager[1])
    assert accepts(eager.clone(), ref, tolerance, eager=eager)
    assert not accepts(torch.tensor([1.0, NAN]).half(), ref, tolerance, eager=eager)
    assert not accepts(torch.tensor([1.0, -INF]).half(), ref, tolerance, eager=eager)
    assert not accepts(torch.tensor([NAN, INF]).half(), ref, tolerance, eager=eager)


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool], ids=str)
def test_integers_are_exact(tolerance: str, dtype: torch.dtype) -> None:
    ref = torch.randint(0, 2, (10, 10)).to(dtype)
    assert accepts(ref.clone(), ref, tolerance)
    out = ref.clone()
    out[4, 7] = ref[4, 7].logical_not() if dtype is torch.bool else ref[4, 7] + 1
    found = compare(out, ref, ref, tolerance)
    assert found.problem.startswith("1 of 100 elements differ (1.00%), the first at [4, 7]")
    assert found.error == pytest.approx(0.01)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_large_integers_are_exact_too(tolerance: str) -> None:
    ref = torch.tensor([2**60])
    assert not accepts(ref + 1, ref, tolerance)
