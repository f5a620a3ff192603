"""The tolerance profiles: what each accepts and refuses, close to its bounds."""

from __future__ import annotations

import math

import pytest
import torch

from evaluators.correctness import (
    FAMILIES,
    STRICT_ELEMENT_FACTOR,
    STRICT_FACTOR,
    Comparison,
    compare,
    some_of,
)
from evaluators.problem import TOLERANCES

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def accepts(
    out: torch.Tensor, ref: torch.Tensor, tolerance: str, *, eager: torch.Tensor | None = None
) -> bool:
    """`eager` defaults to the exact reference, rounded to the candidate's dtype."""
    return not compare(out, ref, ref.to(out.dtype) if eager is None else eager, tolerance).problem


def by_function(
    function: object, inputs: list[torch.Tensor], tolerance: str, reference: object = torch.matmul
) -> Comparison:
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
    """An element may be off by bound + bound × |reference|, in either direction. The outputs stay in float64
    so that the bound is met exactly; the task's dtype is that of eager's."""
    ref = torch.full((50,), value, dtype=torch.float64)
    allowed = bound + bound * abs(value)
    eager = ref.to(dtype)
    for share, accepted in ((0.99, True), (1.01, False)):
        out = ref.clone()
        out[17] += sign * share * allowed
        assert accepts(out, ref, tolerance, eager=eager) is accepted


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_strict_allows_four_times_the_normwise_error_of_eager(factor: float) -> None:
    ref = torch.randn(10_000, dtype=torch.float64)
    noise = torch.randn(10_000, dtype=torch.float64) * 1e-6
    assert accepts(ref + factor * STRICT_FACTOR * noise, ref, "strict", eager=ref + noise) is (factor < 1)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_strict_bounds_the_single_element(factor: float) -> None:
    ref = torch.ones(1_000_000, dtype=torch.float64)
    eager = ref + 1e-6
    out = eager.clone()
    out[123_456] = 1 + factor * STRICT_ELEMENT_FACTOR * 1e-6
    found = compare(out, ref, eager, "strict")
    assert found.error < STRICT_FACTOR * found.eager_error, "the norm hides it"
    assert bool(found.problem) is (factor > 1)


def test_strict_allows_a_few_ulp_where_eager_is_exact() -> None:
    ref = torch.rand(1000, dtype=torch.float64).float().double() + 1
    one_ulp = torch.finfo(torch.float32).eps
    assert accepts((ref * (1 + one_ulp)).float(), ref, "strict")
    assert not accepts((ref * (1 + 20 * one_ulp)).float(), ref, "strict")


def test_zeros_in_place_of_a_long_softmax() -> None:
    """Outputs near 1.5e-5: the reason why that problem takes `strict`."""
    x = torch.randn(4, 65536)
    ref = torch.softmax(x.double(), -1)
    for wrong in (torch.zeros_like(x), torch.full_like(x, 1 / 65536)):
        assert accepts(wrong, ref, "kernelbench", eager=torch.softmax(x, -1))
        assert not accepts(wrong, ref, "strict", eager=torch.softmax(x, -1))


def test_strict_holds_a_softmax_that_is_computed_otherwise() -> None:
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


def test_bf16_tasks_are_judged_by_what_eager_does_at_bf16() -> None:
    inputs = [torch.randn(64, 256).bfloat16(), torch.randn(256, 64).bfloat16()]
    exact_then_rounded = by_function(lambda a, b: (a.double() @ b.double()).bfloat16(), inputs, "strict")
    assert exact_then_rounded.problem == ""


def test_skipping_part_of_the_work_fails_strict() -> None:
    inputs = [torch.randn(64, 1024), torch.randn(1024, 64)]
    found = by_function(lambda a, b: a[:, 1:] @ b[1:], inputs, "strict")
    assert found.problem


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
    same = given == wanted or (given != given and wanted != wanted)
    assert accepts(out, ref, tolerance) is same


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_an_output_that_nobody_wrote_fails(tolerance: str) -> None:
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
    monkeypatch.setattr("evaluators.correctness.CHUNK", 3)
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


@pytest.mark.parametrize("shape", [(4,), (50, 7), (3, 11, 31)], ids=str)
def test_some_elements_are_the_same_of_all_three(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluators.correctness.SPOT", 64)
    monkeypatch.setattr("evaluators.correctness.RUN", 8)
    ref = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    seen = torch.zeros(ref.numel())
    for _ in range(2000):
        out, exact, eager = some_of(ref.float(), ref, ref.half())
        assert torch.equal(out.double(), exact)
        assert torch.equal(eager, exact.half())
        assert exact.numel() == (64 if ref.numel() > 64 else ref.numel())
        seen[exact.flatten().long()] += 1
    assert seen.min() > 0, "no element is safe"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_family_keeps_shape_and_dtype_and_changes_the_distribution(family: str, dtype: torch.dtype) -> None:
    x = torch.randn(100, 100).to(dtype)
    before = x.clone()
    y = FAMILIES[family](x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert torch.equal(x, before), "inputs are not changed in place"
    assert bool(torch.isfinite(y).all())
    statistics = [
        (t.double().mean().item(), t.double().std().item(), (t == 0).double().mean().item()) for t in (x, y)
    ]
    assert any(abs(a - b) > 0.2 for a, b in zip(*statistics, strict=True)) or family == "small"


def test_what_each_family_is() -> None:
    x = torch.randn(100, 100)
    made = {name: change(x) for name, change in FAMILIES.items()}
    assert made["shifted"].mean() == pytest.approx(10, abs=0.1)
    assert made["small"].std() == pytest.approx(0.01, rel=0.05)
    assert made["large"].std() == pytest.approx(100, rel=0.05)
    assert torch.equal(made["integers"], made["integers"].round())
    assert made["integers"].unique().numel() > 10
    assert (made["sparse"] == 0).double().mean() == pytest.approx(0.9, abs=0.02)


def test_small_integers_make_a_matmul_exact() -> None:
    a, b = (FAMILIES["integers"](torch.randn(64, 64)) for _ in range(2))
    assert torch.equal((a @ b).double(), a.double() @ b.double())
