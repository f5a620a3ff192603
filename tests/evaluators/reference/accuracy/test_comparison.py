"""The tolerance profiles: what each accepts and refuses, close to its bounds."""

from __future__ import annotations

import math

import pytest
import torch

from evaluators.records.problem import TOLERANCES
from evaluators.reference.accuracy.comparison import (
    ELEMENT,
    NORMWISE,
    OutputComparison,
    Shift,
    compare,
    passes_allclose,
)
from tests.evaluators.reference.accuracy.comparisons import FLOATS, INF, NAN, accepts


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def by_function(
    function: object, inputs: list[torch.Tensor], tolerance: str, reference: object = torch.matmul
) -> OutputComparison:
    eager = reference(*inputs)  # type: ignore[operator]
    exact = reference(*(x.double() for x in inputs))  # type: ignore[operator]
    return compare(function(*inputs), exact, eager, tolerance)  # type: ignore[operator]


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (64, 64)])
def test_eager_itself_is_within_every_profile(
    tolerance: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape, dtype=dtype)
    found = compare(torch.tanh(x), torch.tanh(x.double()), torch.tanh(x), tolerance)
    assert found.problem == ""
    assert found.error == found.eager_error


@pytest.mark.parametrize(
    ("tolerance", "dtype", "bound"),
    [
        ("kernelbench", torch.float64, 1e-2),
        ("kernelbench", torch.float32, 1e-2),
        ("kernelbench", torch.bfloat16, 1e-2),
        ("kernelbench", torch.float16, 1e-2),
        ("kernelbench_v02", torch.float64, 1e-4),
        ("kernelbench_v02", torch.float32, 1e-4),
        ("kernelbench_v02", torch.bfloat16, 1e-2),
        ("kernelbench_v02", torch.float16, 1e-2),
    ],
)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 100.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_flat_profiles_bound_each_element(
    tolerance: str, dtype: torch.dtype, bound: float, value: float, sign: int
) -> None:
    """An element may be off by bound × the outputs' rms, 1 at most, + bound × |reference|, in either
    direction; on other distributions by as much of the rms whatever it is. The outputs stay in float64 so
    that the bound is met exactly; the task's dtype is that of eager's."""
    ref = torch.full((50,), value, dtype=torch.float64)
    eager = ref.to(dtype)
    for own, scale in ((True, min(1.0, abs(value))), (False, abs(value))):
        allowed = bound * scale + bound * abs(value)
        for share, accepted in ((0.99, True), (1.01, False)):
            out = ref.clone()
            out[17] += sign * (share * allowed or share - 1)
            right = not compare(out, ref, eager, tolerance, own=own).problem
            assert right is (accepted and value != 0)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_strict_allows_four_times_the_normwise_error_of_eager(factor: float) -> None:
    ref = torch.randn(10_000, dtype=torch.float64)
    noise = torch.randn(10_000, dtype=torch.float64) * 1e-6
    assert accepts(ref + factor * NORMWISE["wide"].eager * noise, ref, "strict", eager=ref + noise) is (
        factor < 1
    )


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_strict_bounds_the_single_element(factor: float) -> None:
    ref = torch.ones(1_000_000, dtype=torch.float64)
    eager = ref + 1e-6
    out = eager.clone()
    out[123_456] = 1 + factor * ELEMENT["wide"].eager * 1e-6
    found = compare(out, ref, eager, "strict")
    assert found.error < NORMWISE["wide"].eager * found.eager_error, "the norm hides it"
    assert bool(found.problem) is (factor > 1)


def test_strict_allows_a_few_ulp_where_eager_is_exact() -> None:
    ref = torch.rand(1000, dtype=torch.float64).float().double() + 1
    one_ulp = torch.finfo(torch.float32).eps
    assert accepts((ref * (1 + one_ulp)).float(), ref, "strict")
    assert not accepts((ref * (1 + 20 * one_ulp)).float(), ref, "strict")


@pytest.mark.parametrize(("error", "right"), [(2.4e-6, True), (4.4e-6, False)])
def test_products_may_cost_what_winograds_transforms_do(error: float, right: bool) -> None:
    """Of an answer in which eager is off by 2.6e-7; the larger error is that of two bfloat16 terms."""
    ref = torch.randn(256, 256, dtype=torch.float64)
    eager, out = ((ref + off * torch.randn_like(ref)).float() for off in (2.6e-7, error))
    assert (not compare(out, ref, eager, "strict", products=True).problem) is right
    assert compare(out, ref, eager, "strict").problem


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_zeros_in_place_of_a_long_softmax(tolerance: str) -> None:
    """Outputs near 1.5e-5 are judged on their own scale."""
    x = torch.randn(4, 65536)
    ref = torch.softmax(x.double(), -1)
    for wrong in (torch.zeros_like(x), torch.full_like(x, 1 / 65536)):
        assert not accepts(wrong, ref, tolerance, eager=torch.softmax(x, -1))


@pytest.mark.parametrize("tolerance", ["kernelbench", "kernelbench_v02"])
def test_a_flat_rule_that_eager_breaks_is_met_by_eager(tolerance: str) -> None:
    """TF32 convolutions miss 1e-4 against float64; so does, by as much, a kernel that agrees with float64."""
    ref = torch.randn(1000, dtype=torch.float64)
    eager = (ref * 1.03).float()
    assert accepts(eager.clone(), ref, tolerance, eager=eager)
    assert accepts(ref.float(), ref, tolerance, eager=eager)
    assert not accepts((ref * 0.97).float(), ref, tolerance, eager=eager)


def test_what_the_benchmark_itself_would_say() -> None:
    eager = torch.ones(100)
    assert passes_allclose(eager + 1e-3, eager, "kernelbench")
    assert not passes_allclose(eager + 1e-3, eager, "kernelbench_v02")
    assert passes_allclose(eager.half() + 1e-3, eager.half(), "kernelbench_v02")
    assert not passes_allclose(eager.half(), eager, "kernelbench"), "another dtype"
    assert not passes_allclose(eager * math.nan, eager, "kernelbench")


def test_strict_accepts_a_softmax_computed_differently() -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    x = torch.randn(8, 4096)
    assert by_function(other, [x], "strict", lambda x: torch.softmax(x, -1)).problem == ""


def split_k(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return sum(x @ y for x, y in zip(a.split(16, 1), b.split(16, 0), strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_another_order_of_summation_is_within_every_profile(tolerance: str) -> None:
    inputs = [torch.randn(64, 256), torch.randn(256, 64)]
    assert by_function(split_k, inputs, tolerance).problem == ""


@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_in_place_of_fp32_fails_strict(lower: torch.dtype) -> None:
    inputs = [torch.randn(64, 256), torch.randn(256, 64)]
    rounded_inputs = by_function(lambda a, b: a.to(lower).float() @ b.to(lower).float(), inputs, "strict")
    rounded_output = by_function(lambda a, b: (a @ b).to(lower).float(), inputs, "strict")
    assert "instead of" in rounded_inputs.problem or "normwise" in rounded_inputs.problem
    assert rounded_output.problem
    assert rounded_inputs.error > 100 * rounded_inputs.eager_error


def test_tf32_in_place_of_fp32_fails_strict() -> None:
    def tf32(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)

    inputs = [torch.randn(64, 256), torch.randn(256, 64)]
    assert by_function(lambda a, b: tf32(a) @ tf32(b), inputs, "strict").problem


@pytest.mark.parametrize(("scale", "accepted"), [(1 / 16, True), (1.0, False)])
def test_a_bf16_matmul_passes_kernelbench_only_where_it_is_within(scale: float, accepted: bool) -> None:
    """Outputs of order one are within 1e-2, outputs of order 16 have elements near zero that are not."""
    inputs = [scale * torch.randn(64, 256), torch.randn(256, 64)]

    def bf16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.bfloat16().float() @ b.bfloat16().float()

    assert (by_function(bf16, inputs, "kernelbench").problem == "") is accepted
    assert by_function(bf16, inputs, "kernelbench_v02").problem
    assert by_function(bf16, inputs, "strict").problem


def half_matmul(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, Shift, torch.Tensor, torch.Tensor]:
    """Factors in a half type, the exact product, how far it moves by a rounding of them, and eager's."""
    a, b = (torch.randn(128, 512).to(dtype) for _ in range(2))
    b = b.t().contiguous()
    unit = torch.finfo(dtype).eps / 2
    exact = a.double() @ b.double()
    moved = [x.double() * (1 + unit * (2 * torch.rand(x.shape) - 1)) for x in (a, b)]
    return a, b, Shift.between(moved[0] @ moved[1], exact), exact, (a.float() @ b.float()).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_strict_in_half_types_allows_one_more_rounding_and_no_lower_precision(dtype: torch.dtype) -> None:
    a, b, shift, exact, eager = half_matmul(dtype)

    def judged(out: torch.Tensor) -> str:
        return compare(out, exact, eager, "strict", shift=shift).problem

    assert not judged(eager)
    halves = [(a[:, part].float() @ b[part].float()).to(dtype) for part in (slice(0, 256), slice(256, 512))]
    assert not judged((halves[0].float() + halves[1].float()).to(dtype)), "two roundings"

    def int8(x: torch.Tensor, axis: int) -> torch.Tensor:
        scale = x.float().abs().amax(axis, keepdim=True) / 127
        return (x.float() / scale).round() * scale

    assert "normwise" in judged((int8(a, 1) @ int8(b, 0)).to(dtype))
    lower = torch.bfloat16 if dtype is torch.float16 else torch.float8_e4m3fn
    assert "normwise" in judged((a.to(lower).float() @ b.to(lower).float()).to(dtype))


def test_a_stated_precision_is_spent_and_no_more() -> None:
    a, b = torch.randn(128, 512), torch.randn(512, 128)
    exact = a.double() @ b.double()

    def rounded(dtype: torch.dtype) -> torch.Tensor:
        return a.to(dtype).double() @ b.to(dtype).double()

    shift = Shift.between(rounded(torch.float16), exact)
    assert not compare(rounded(torch.float16).float(), exact, a @ b, "strict", shift=shift).problem
    assert compare(rounded(torch.bfloat16).float(), exact, a @ b, "strict", shift=shift).problem


@pytest.mark.parametrize(("error", "right"), [(6e-4, True), (9e-4, False)])
def test_of_factors_that_eager_rounds_too_the_rounding_counts_once(error: float, right: bool) -> None:
    """As on a GPU, where eager's convolutions are of tfloat32: factors of bfloat16 cost 1.1e-3 there."""
    ref = torch.randn(64, 64, dtype=torch.float64)
    noise = torch.randn(64, 64, dtype=torch.float64)
    noise *= ref.norm() / noise.norm()
    shift = Shift(rms=2e-4, largest=1e-3)
    out, eager = ((ref + share * noise).float() for share in (error, 1.8e-4))
    assert (not compare(out, ref, eager, "strict", shift=shift, products=True).problem) is right


def test_a_naive_float32_sum_is_another_order() -> None:
    a, b = torch.randn(64, 4096), torch.randn(4096, 64)
    out = torch.zeros(64, 64)
    for k in range(4096):
        out += a[:, k : k + 1] * b[k : k + 1]
    unit = torch.finfo(torch.float32).eps / 2
    exact = a.double() @ b.double()
    moved = [x.double() * (1 + unit * (2 * torch.rand(x.shape) - 1)) for x in (a, b)]
    shift = Shift.between(moved[0] @ moved[1], exact)
    found = compare(out, exact, a @ b, "strict", shift=shift)
    assert not found.problem, (found, shift)


def test_complex_outputs_are_judged_as_pairs() -> None:
    x = torch.randn(1000, dtype=torch.complex64)
    ref = x.to(torch.complex128) * 2
    for tolerance in TOLERANCES:
        assert accepts(x * 2 * (1 + 1e-7), ref, tolerance, eager=x * 2)
        assert not accepts(x.conj().resolve_conj() * 2, ref, tolerance, eager=x * 2)


def test_without_float64_eagers_error_is_not_assumed_to_be_zero() -> None:
    eager = torch.randn(1000)
    shift = Shift(rms=1e-6, largest=4e-6)

    def judged(error: float) -> str:
        out = eager + error * torch.randn(1000)
        return compare(out, eager, eager, "strict", shift=shift, exact=False).problem

    assert not judged(2e-6)
    assert judged(2e-5)


def test_bf16_tasks_are_judged_by_what_eager_does_at_bf16() -> None:
    inputs = [torch.randn(64, 256).bfloat16(), torch.randn(256, 64).bfloat16()]
    exact_then_rounded = by_function(lambda a, b: (a.double() @ b.double()).bfloat16(), inputs, "strict")
    assert exact_then_rounded.problem == ""


def test_skipping_part_of_the_work_fails_strict() -> None:
    inputs = [torch.randn(64, 1024), torch.randn(1024, 64)]
    found = by_function(lambda a, b: a[:, 1:] @ b[1:], inputs, "strict")
    assert found.problem


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_a_mismatch_names_the_first_element_and_the_errors(tolerance: str) -> None:
    ref = torch.randn(4, 5, dtype=torch.float64)
    out = ref.float()
    out[1, 2], out[3, 4] = 50.0, 60.0
    found = compare(out, ref, ref.float(), tolerance)
    assert found.problem.startswith("2 of 20 elements differ (10.00%), the first at [1, 2]: 50 instead of")
    assert "normwise error" in found.problem
    assert "\n" not in found.problem


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("change", ["nothing", "an element", "everything", "nan"])
def test_parts_are_compared_like_the_whole(
    tolerance: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = torch.randn(4, 5, dtype=torch.float64)
    out = ref.float().t()  # not in the order of memory
    if change == "an element":
        out[3, 2] += 7
    elif change == "everything":
        out *= 1.5
    elif change == "nan":
        out[4, 1] = NAN
    whole = compare(out, ref.t(), ref.float().t(), tolerance)
    assert bool(whole.problem) == (change != "nothing")
    monkeypatch.setattr("evaluators.reference.accuracy.differences.CHUNK", 3)
    parts = compare(out, ref.t(), ref.float().t(), tolerance)
    assert parts.problem == whole.problem
    assert parts.error == pytest.approx(whole.error)
    assert parts.eager_error == pytest.approx(whole.eager_error)


def test_an_output_without_elements_cannot_differ() -> None:
    nothing = torch.empty(0, 3)
    assert not compare(nothing, nothing.double(), nothing, "strict").problem


def test_a_scalar_can_be_wrong() -> None:
    ref = torch.tensor(1.0, dtype=torch.float64)
    assert compare(torch.tensor(2.0), ref, ref.float(), "strict").problem.startswith("1 of 1 elements differ")


@pytest.mark.parametrize("value", [3.0, NAN])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_arguments_are_left_as_they_are(value: float, dtype: torch.dtype) -> None:
    ref = torch.tensor([1.0, value, -2.0], dtype=torch.float64)
    out, eager = ref.to(dtype, copy=True), ref.to(dtype, copy=True)
    for tolerance in TOLERANCES:
        compare(out, ref, eager, tolerance)
    for tensor in (out, eager, ref):
        expected = torch.tensor([1.0, 7.0 if math.isnan(value) else value, -2.0], dtype=tensor.dtype)
        assert torch.equal(tensor.nan_to_num(7), expected)


def test_where_only_eager_is_nan_a_number_has_to_be_right() -> None:
    """PyTorch's RMS norm on a GPU makes all of an odd row with an infinity NaN; by the formula, its finite
    elements become zero, and a sum over rows keeps the others' share."""
    ref = torch.tensor([0.0, NAN, 1.5, -2.0, 3.0], dtype=torch.float64)
    eager = torch.tensor([NAN, NAN, NAN, -2.0, 3.0])
    right = ref.float()
    assert accepts(right, ref, "strict", eager=eager)
    assert accepts(eager, ref, "strict", eager=eager)
    for place, value in ((0, 1.0), (2, 1.6), (2, INF), (1, 0.0), (3, NAN)):
        wrong = right.clone()
        wrong[place] = value
        assert accepts(wrong, ref, "strict", eager=eager) == (value == INF and place == 2)
    overflows = torch.tensor([INF, 1.0], dtype=torch.float16)
    exact = torch.tensor([1e6, 1.0], dtype=torch.float64)
    assert not accepts(torch.tensor([65504.0, 1.0], dtype=torch.float16), exact, "strict", eager=overflows)
