"""Wrong kernels that only a particular distribution exposes, and right ones that it accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from evaluators.reference.inputs import usable_distributions
from evaluators.reference.inputs.input_distributions import (
    ALL_IGNORED,
    DISTRIBUTIONS,
    EMPTY_BAGS,
    EXTREME_INTEGERS,
    IGNORED,
    LARGEST,
    SMALLEST,
    Distribution,
)
from evaluators.reference.inputs.usable_distributions import open_distributions
from evaluators.reference.reference_model import ReferenceModel
from tests.evaluators.references import session_of

Draw = Callable[[], list[Any]]


@pytest.fixture(autouse=True)
def _no_far_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(usable_distributions, "far_scales", lambda name, most=None: [Distribution(name=name)])


def opened(
    monkeypatch: pytest.MonkeyPatch, names: Sequence[str], function: Any, draw: Draw, **rules: str
) -> ReferenceModel:
    """A reference with these distributions only, and those that its operators ask for."""
    chosen = tuple(each for each in DISTRIBUTIONS if each.name in names)
    monkeypatch.setattr(usable_distributions, "DISTRIBUTIONS", chosen)
    reference = session_of(function, draw, **rules)
    reference.count_work()
    open_distributions(reference)
    for name in (LARGEST, SMALLEST):
        reference.distributions.pop(name, None)
    return reference


def wrong(reference: ReferenceModel, kernel: Callable[..., Any]) -> set[str]:
    """The distributions on which a kernel is wrong."""
    with torch.no_grad():
        drawn = {name: reference.draw(reference.seed_on(name), name) for name in reference.distributions}
        return {name for name, inputs in drawn.items() if reference.check_on([kernel(*inputs)], name).problem}


BORDERS = "outliers at borders"


def normalised(x: torch.Tensor, dims: tuple[int, ...], pivot: torch.Tensor | None = None) -> torch.Tensor:
    """In float32, by sums around a pivot; without one, in two passes."""
    wide = x.float()
    mean = wide.mean(dims, keepdim=True)
    variance = (wide - mean).square().mean(dims, keepdim=True)
    if pivot is not None:
        off = wide - pivot.float()
        mean = off.mean(dims, keepdim=True)
        variance = off.square().mean(dims, keepdim=True) - mean.square()
        mean = mean + pivot.float()
    return ((wide - mean) / (variance.clamp(min=0) + 1e-5).sqrt()).to(x.dtype)


TRIES = 5
"""Draws of which at least one must show a wrong variance. Nearly all do in float32."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dims", "place", "dtype"),
    [
        ((8, 8, 32, 32), (1, 2, 3), 0, "float32"),
        ((8, 8, 32, 32), (1, 2, 3), -1, "float32"),
        ((8, 8, 32, 32), (0, 2, 3), 0, "float32"),
        ((8, 8, 32, 32), (2, 3), -1, "float32"),
        ((32, 4096), (1,), 0, "float32"),
        ((4096, 32), (0,), 0, "float32"),
        ((8, 131072), (1,), 0, "float16"),
    ],
)
def test_a_variance_around_the_first_or_last_element(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dims: tuple[int, ...], place: int, dtype: str
) -> None:
    """In float16 only long reductions lose more than the type's own rounding, and not in every draw."""

    def around(x: torch.Tensor) -> torch.Tensor:
        pivot = x
        for axis in dims:
            pivot = pivot.narrow(axis, place % x.shape[axis], 1)
        return normalised(x, dims, pivot)

    def reference(x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
        return (x - mean) * (variance + 1e-5).rsqrt()

    def session() -> ReferenceModel:
        names = ("outlier", BORDERS)
        return opened(monkeypatch, names, reference, lambda: [torch.randn(shape)], dtype=dtype)

    assert wrong(session(), lambda x: normalised(x, dims)) == set()
    found = (wrong(session(), around) for _ in range(TRIES))
    assert {BORDERS} in found


def read_on(a: torch.Tensor, extra: int) -> torch.Tensor:
    """Each row with this many elements of the next; behind the last row there are ones."""
    flat = torch.cat([a.flatten(), torch.ones(extra)])
    return flat.as_strided((len(a), a.shape[1] + extra), (a.shape[1], 1))


NONFINITE = ("infinite", "NaN")


@pytest.mark.parametrize("rule", [{}, {"precision": "float16"}, {"tolerance": "kernelbench"}], ids=str)
def test_a_product_that_masks_only_one_factor(monkeypatch: pytest.MonkeyPatch, rule: dict[str, str]) -> None:
    def one_masked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return read_on(a, 28) @ functional.pad(b, (0, 0, 0, 28))

    def other_masked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.pad(a, (0, 28)) @ read_on(b.t().contiguous(), 28).t()

    def both_masked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.pad(a, (0, 28)) @ functional.pad(b, (0, 0, 0, 28))

    def factor() -> torch.Tensor:
        return torch.randn(100, 100)

    def transposed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b.t()

    session = opened(monkeypatch, NONFINITE, torch.matmul, lambda: [factor(), factor()], **rule)
    assert {*session.distributions} == {*NONFINITE}
    assert wrong(session, one_masked) == {*NONFINITE}
    assert wrong(session, both_masked) == set()
    session = opened(monkeypatch, NONFINITE, transposed, lambda: [factor(), factor()], **rule)
    assert wrong(session, lambda a, b: other_masked(a, b.t())) == {*NONFINITE}
    assert wrong(session, lambda a, b: both_masked(a, b.t())) == set()


def test_a_mask_by_multiplication(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = torch.arange(128) < 100

    def multiplied(x: torch.Tensor) -> torch.Tensor:
        return (read_on(x, 28) * mask).sum(1)

    def before(x: torch.Tensor) -> torch.Tensor:
        left = torch.cat([torch.ones(1), x.flatten()[:-1]]).view_as(x)[:, :1]
        return torch.cat([left * 0, x], 1).sum(1)

    def chosen(x: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, read_on(x, 28), 0).sum(1)

    def session() -> ReferenceModel:
        return opened(monkeypatch, NONFINITE, lambda x: x.sum(1), lambda: [torch.randn(200, 100)])

    for each in (multiplied, before):  # about one draw of 60 does not show one of the two
        assert {*NONFINITE} in (wrong(session(), each) for _ in range(TRIES))
    assert wrong(session(), chosen) == set()


def positive(x: torch.Tensor) -> torch.Tensor:
    """The maximum with 0 that most instructions give: 0 for NaN."""
    return torch.fmax(x, torch.zeros(()))


def test_nan_through_products_and_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(8, 3, 3, 3)

    def convolved(x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, weight.to(x))

    def reference(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(convolved(x).relu(), 2)

    def lost_in_relu(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(positive(convolved(x)), 2)

    def lost_in_pool(x: torch.Tensor) -> torch.Tensor:
        y = convolved(x).relu()
        return torch.fmax(
            torch.fmax(y[..., ::2, ::2], y[..., 1::2, ::2]), torch.fmax(y[..., ::2, 1::2], y[..., 1::2, 1::2])
        )

    def spread(x: torch.Tensor) -> torch.Tensor:
        y = reference(x)
        return y.where(~y.isnan().any(-1, keepdim=True), torch.nan)

    def draw() -> list[torch.Tensor]:
        return [torch.randn(4, 3, 34, 34)]

    session = opened(monkeypatch, NONFINITE, reference, draw)
    assert session.has_convolutions
    assert wrong(session, reference) == wrong(session, spread) == set()
    assert wrong(session, lost_in_relu) == wrong(session, lost_in_pool) == {"NaN"}
    session = opened(monkeypatch, NONFINITE, reference, draw, precision="float16")
    assert wrong(session, lost_in_relu) == {"NaN"}
    session = opened(monkeypatch, NONFINITE, reference, draw, tolerance="kernelbench")
    assert wrong(session, lost_in_relu) == set(), "usual among kernels for that benchmark"


def test_what_a_product_may_skip_need_not_become_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    def diagonal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.diag(a) @ b

    session = opened(monkeypatch, NONFINITE, diagonal, lambda: [torch.randn(64), torch.randn(64, 96)])
    assert wrong(session, lambda a, b: a[:, None] * b) == set()
    assert wrong(session, lambda a, b: (a[:, None] * b).nan_to_num(0.0)) == {"NaN"}


@pytest.mark.parametrize(
    ("reference", "kernel"),
    [
        (lambda x: x.argmax(1), lambda x: x.nan_to_num(-torch.inf).argmax(1)),
        (lambda x: x.clamp(min=1), lambda x: torch.fmax(x, torch.ones(()))),
        (lambda x: x.amax(1), lambda x: x.nan_to_num(-torch.inf).amax(1)),
        (lambda x: x > 0, lambda x: ~(x <= 0)),
        (lambda x: x.relu() @ torch.ones(100, 3, dtype=x.dtype), lambda x: positive(x) @ torch.ones(100, 3)),
    ],
    ids=["argmax", "clamp", "maximum", "comparison", "product"],
)
def test_nan_in_comparisons(monkeypatch: pytest.MonkeyPatch, reference: Any, kernel: Any) -> None:
    session = opened(monkeypatch, ("shifted", "NaN"), reference, lambda: [torch.randn(200, 100)])
    assert wrong(session, reference) == set()
    assert wrong(session, kernel) == {"NaN"}


def test_nan_as_a_small_integer_is_undefined(monkeypatch: pytest.MonkeyPatch) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return (x * 20).round().clamp(-128, 127).to(torch.int8)

    session = opened(monkeypatch, ("NaN",), reference, lambda: [torch.randn(64, 100)])
    assert wrong(session, lambda x: reference(x.nan_to_num(3.0))) == set()


def saturated(x: torch.Tensor, bits: int) -> torch.Tensor:
    return x.clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def pairs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Products added in pairs, with saturation at 16 bits."""
    products = x.int()[:, None] * w.int()
    return saturated(products.view(*products.shape[:2], -1, 2).sum(-1), 16).sum(-1, dtype=torch.int32)


def in_sixteen_bits(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.short()[:, None] * w.short()).sum(-1, dtype=torch.int16).int()


def int_draw(low: int, high: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape).to(dtype)


def test_integers_that_saturate_or_overflow_in_a_narrow_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.int() @ w.int().t()

    for low, high, other in ((0, 128, torch.uint8), (-20, 20, torch.int8)):
        session = opened(
            monkeypatch,
            ("extreme indices", EXTREME_INTEGERS),
            linear,
            lambda low=low, high=high, other=other: [
                int_draw(low, high, other, 16, 64),
                int_draw(-60, 60, torch.int8, 24, 64),
            ],
        )
        assert wrong(session, linear) == set()
        assert EXTREME_INTEGERS in wrong(session, in_sixteen_bits)
        assert EXTREME_INTEGERS in wrong(session, pairs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_a_long_sum_of_integers(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """PyTorch adds integers in 64 bits."""
    narrow = torch.int32 if dtype is torch.int32 else torch.int16
    session = opened(
        monkeypatch, (EXTREME_INTEGERS,), lambda x: x.sum(1), lambda: [int_draw(0, 100, dtype, 64, 1000)]
    )
    assert {*session.distributions} == {EXTREME_INTEGERS}
    assert wrong(session, lambda x: x.sum(1, dtype=narrow).long()) == {EXTREME_INTEGERS}
    assert wrong(session, lambda x: x.long().flip(1).sum(1)) == set()


def test_indices_are_never_the_extremes_of_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def reference(table: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return table[place + 1]

    def draw() -> list[Any]:
        return [torch.randn(10, 8), torch.randint(0, 9, (50,))]

    session = opened(monkeypatch, ("extreme indices", EXTREME_INTEGERS), reference, draw)
    assert {*session.distributions} == {"extreme indices"}


def test_integers_of_a_mask_or_of_four_bits_stay_in_their_range(monkeypatch: pytest.MonkeyPatch) -> None:
    for low, high in ((0, 2), (-8, 8)):
        session = opened(
            monkeypatch,
            ("extreme indices", EXTREME_INTEGERS),
            lambda x: x.sum(1),
            lambda low=low, high=high: [int_draw(low, high, torch.int8, 64, 100)],
        )
        assert {*session.distributions} == {"extreme indices"}


def test_targets_that_a_loss_ignores(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw() -> list[Any]:
        return [torch.randn(64, 10), torch.randint(0, 10, (64,))]

    def forgets(reduction: str) -> Callable[..., Any]:
        def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            losses = -logits.log_softmax(1).gather(1, target.remainder(10)[:, None])[:, 0]
            return losses if reduction == "none" else getattr(losses, reduction)()

        return loss

    def knows(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kept = target != -100
        losses = -logits.log_softmax(1).gather(1, target.where(kept, 0)[:, None])[:, 0]
        return losses.where(kept, 0.0).sum() / kept.sum()

    def divides_by_all(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kept = target != -100
        return -logits.log_softmax(1).gather(1, target.where(kept, 0)[:, None])[:, 0].where(kept, 0.0).mean()

    session = opened(monkeypatch, (), functional.cross_entropy, draw)
    assert {*session.distributions} == {IGNORED, ALL_IGNORED}
    assert wrong(session, forgets("mean")) == wrong(session, divides_by_all) == {IGNORED, ALL_IGNORED}
    assert wrong(session, knows) == set()
    session = opened(
        monkeypatch, (), lambda x, y: functional.cross_entropy(x, y, ignore_index=3, reduction="sum"), draw
    )
    assert wrong(session, forgets("sum")) == {IGNORED, ALL_IGNORED}


def test_numbers_that_a_reference_compares_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A padding token, which no draw contains."""

    def mean(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        kept = (ids.view(8, 50) != 0)[..., None]
        return (x * kept).sum(1) / kept.sum(1).clamp(min=1)

    def unclamped(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        kept = (ids != 0)[..., None]
        return (x * kept).sum(1) / kept.sum(1)

    def draw() -> list[Any]:
        return [torch.randn(8, 50, 16), torch.randint(1, 100, (8, 50))]

    session = opened(monkeypatch, (), mean, draw)
    assert wrong(session, lambda x, ids: x.mean(1)) == {IGNORED, ALL_IGNORED}
    assert wrong(session, unclamped) == {ALL_IGNORED}, "zero by zero"


def test_empty_bags_and_padding_of_an_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.randn(20, 8)

    def bags(index: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(index, table, offsets, mode="mean", padding_idx=7)

    def by_segments(index: torch.Tensor, offsets: torch.Tensor, least: float, padding: int) -> torch.Tensor:
        segment = torch.bucketize(torch.arange(len(index)), offsets, right=True) - 1
        kept = index != padding
        sums = torch.zeros(len(offsets), 8).index_add(0, segment[kept], table[index[kept]])
        return sums / segment[kept].bincount(minlength=len(offsets)).clamp(min=least)[:, None]

    def draw() -> list[Any]:
        index = torch.randint(0, 20, (200,))
        return [index.where(index != 7, 8), torch.arange(0, 200, 10)]

    session = opened(monkeypatch, (), bags, draw)
    assert {*session.distributions} == {IGNORED, ALL_IGNORED, EMPTY_BAGS}
    assert wrong(session, lambda *x: by_segments(*x, least=1, padding=7)) == set()
    assert wrong(session, lambda *x: by_segments(*x, least=0, padding=7)) == {ALL_IGNORED, EMPTY_BAGS}
    assert wrong(session, lambda *x: by_segments(*x, least=1, padding=-1)) == {IGNORED, ALL_IGNORED}


def test_offsets_of_bags_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others end a GPU's context by an assertion."""
    table = torch.randn(20, 8)

    def draw() -> list[Any]:
        return [torch.randint(0, 20, (200,)), torch.arange(0, 200, 10)]

    session = opened(
        monkeypatch, ("extreme indices",), lambda *x: functional.embedding_bag(x[0], table, x[1]), draw
    )
    assert session.distributions["extreme indices"].only == frozenset({0})


def test_a_mask_that_leaves_nothing_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x, 0).sum(1) / mask.sum(1).clamp(min=1)

    def draw() -> list[Any]:
        return [torch.randn(16, 1000), torch.arange(1000) < torch.randint(500, 1001, (16, 1))]

    session = opened(monkeypatch, ("true prefixes",), mean, draw)
    assert wrong(session, lambda x, mask: torch.where(mask, x, 0).sum(1) / mask.sum(1)) == {"true prefixes"}
    assert wrong(session, mean) == set()


def test_a_reference_may_assert_what_its_inputs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the references of paged attention do; here the places grow."""

    def reference(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        assert bool((ends.diff() > 0).all())
        return x.cumsum(0)[ends - 1]

    def draw() -> list[Any]:
        return [torch.randn(64), torch.tensor([8, 24, 64])]

    opened_one = opened(monkeypatch, ["repeated indices", "large"], reference, draw)
    assert opened_one.untried["repeated indices"] == "the reference raises AssertionError"
    assert "large" in opened_one.distributions
