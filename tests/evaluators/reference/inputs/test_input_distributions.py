"""What each input distribution makes of inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from evaluators.reference.inputs.input_distributions import (
    ALL_IGNORED,
    DESCRIPTIONS,
    DISTRIBUTIONS,
    EMPTY_BAGS,
    FAR,
    IGNORED,
    LARGEST,
    SMALLEST,
    far_scales,
)

BY_NAME = {each.name: each for each in DISTRIBUTIONS}
FLOATING = [each.name for each in DISTRIBUTIONS if each.floating is not None]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def made(name: str, x: torch.Tensor) -> torch.Tensor:
    (found,) = BY_NAME[name].applied([x])
    return found


@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shape_dtype_layout_and_the_inputs_themselves_stay(name: str, dtype: torch.dtype) -> None:
    base = torch.randn(40, 60).to(dtype)
    before = base.clone()
    for x in (base, base.t(), base[:, ::2], base[3], base[0, 0], base[:, :1].expand(40, 7)):
        torch.manual_seed(3)
        y = made(name, x)
        assert (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())
        torch.manual_seed(3)
        again = made(name, x)
        assert torch.equal(again.nan_to_num(7), y.nan_to_num(7)), "the same for the same seed"
    assert torch.equal(base, before)
    assert BY_NAME[name].nonfinite or bool(made(name, base.float()).isfinite().all())
    if name != "unequal scales":  # which may be 1
        assert not torch.equal(made(name, base).nan_to_num(7), base)


def test_what_each_is() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 300)
    y = {name: made(name, x) for name in FLOATING}
    assert torch.equal(y["shifted"], x + 10)
    assert torch.equal(y["small"], x / 128) and torch.equal(y["large"], x * 128)
    assert (y["sparse"].abs() < 0.01).float().mean() == pytest.approx(0.9, abs=0.02)
    assert torch.equal(y["whole numbers"], y["whole numbers"].round())
    assert y["negative"].max() < -60
    assert torch.equal(y["constant rows"], x[:, :1].bfloat16().float().expand_as(x))
    assert y["outlier"].abs().max() > 5e3 and (y["outlier"] != x).sum() == 1
    assert ((y["spikes"] > 100).sum(1) == 1).all()
    edge = y["spikes at the edge"]
    assert ((edge > 100).sum(1) == 1).all() and (edge[:, 1:-4] < 100).all() and (edge[:, 0] > 100).any()
    assert (y["unequal scales"] / x).unique().numel() == 1
    for part in (y["uneven"][:100].mean(), y["uneven"][:, :150].mean()):
        assert abs(part - y["uneven"].mean()) > 0.2, "no half has the mean of the whole"
    zeros = y["near zero"] == 0
    assert (zeros & y["near zero"].signbit()).any() and (zeros & ~y["near zero"].signbit()).any()
    tiny = torch.finfo(torch.float32).tiny
    assert ((y["near zero"].abs() < tiny) & ~zeros).any()
    masked = y["masked"] == -math.inf
    assert masked.any(1).all() and not masked.all(1).any(), "in every row, and none is all masked"
    assert masked[:, 0].float().mean() > 0.5
    assert y["infinite"].isposinf().any() and y["infinite"].isneginf().any()
    assert y["NaN"].isnan().any()


def test_infinities_of_the_problems_own_stay() -> None:
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -math.inf)
    for name in FLOATING:
        if not BY_NAME[name].nonfinite:
            assert torch.equal(made(name, mask).isinf(), mask.isinf()), name


def test_indices_stay_among_those_that_occur() -> None:
    x = torch.randint(5, 90, (30, 40))
    for name in ("sorted indices", "repeated indices", "extreme indices"):
        y = made(name, x)
        assert y.dtype is x.dtype and y.min() >= x.min() and y.max() <= x.max()
    assert (made("sorted indices", x).diff(dim=1) >= 0).all()
    assert made("repeated indices", x).unique().numel() == 1
    assert set(made("extreme indices", x).unique().tolist()) == {x.min().item(), x.max().item()}


def test_masks() -> None:
    mask = torch.ones(20, 50, dtype=torch.bool)
    assert made("all true", ~mask).all() and not made("all false", mask).any()
    assert 0.4 < made("true at random", mask).float().mean() < 0.6
    prefixes = made("true prefixes", mask)
    assert (prefixes.int().diff(dim=1) <= 0).all() and prefixes.any() and not prefixes.all()


def test_only_tensors_of_its_kind_change_in_containers_too() -> None:
    x, ids = torch.randn(4, 5), torch.arange(3)
    first, (same, scale) = BY_NAME["large"].applied([x, (ids, 2.0)])
    assert torch.equal(first, x * 128) and same is ids and scale == 2.0
    one, other = replace(BY_NAME["large"], only=frozenset({1})).applied([x, x])
    assert one is x and torch.equal(other, x * 128)


def test_complex_numbers_change_as_pairs() -> None:
    x = torch.randn(6, 7, dtype=torch.complex64)
    assert torch.equal(made("small", x), x / 128)
    assert made("shifted", x).imag.mean() > 9


def test_far_scales_begin_with_the_furthest() -> None:
    for name, sign in ((LARGEST, 1), (SMALLEST, -1)):
        found = [each.applied([torch.ones(())])[0].item() for each in far_scales(name)]
        assert found == [2.0 ** (sign * exponent) for exponent in FAR]


def test_every_distribution_has_words() -> None:
    special = {IGNORED, ALL_IGNORED, EMPTY_BAGS}
    assert {*DESCRIPTIONS} == {*BY_NAME, LARGEST, SMALLEST, *special}
