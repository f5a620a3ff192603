"""Inputs that hardly differ from a call's, and answers to the call before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from evaluators.reference.accuracy.comparison import NO_SHIFT
from evaluators.reference.answer import ReferenceAnswer
from evaluators.reference.containers import tensors_in
from evaluators.reference.inputs.input_distributions import Distribution
from evaluators.reference.inputs.near_repeats import TRIED, is_stale, near_repeats

ALL = {name: Distribution(name=name) for name in ("extreme indices", "true at random")}
COUNT = 6


def changes(*inputs: Any, known: Mapping[str, Distribution] = ALL) -> list[list[int]]:
    """The number of changed elements of each tensor, per repeat."""
    before = [each.clone() for each in tensors_in(list(inputs))]
    found = list(near_repeats(list(inputs), COUNT, known))
    assert all(torch.equal(*pair) for pair in zip(before, tensors_in(list(inputs)), strict=True))
    return [
        [int((now != old).sum()) for now, old in zip(tensors_in(each), before, strict=True)] for each in found
    ]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(64, 64),
        torch.randn(64, 64).half(),
        torch.randn(64, 64, dtype=torch.complex64),
        torch.randn(64, 128)[:, ::2],
        torch.randint(0, 1000, (64, 64)),
        torch.rand(64, 64) < 0.5,
        torch.randn(3),
    ],
    ids=lambda each: f"{each.dtype} {tuple(each.stride())}",
)
def test_two_or_some_dozens_of_elements_change(tensor: torch.Tensor) -> None:
    found = changes(tensor)
    assert len(found) == COUNT
    assert all(count <= (2 if turn % 2 == 0 else TRIED) for turn, (count,) in enumerate(found))
    assert sum(count > 0 for (count,) in found) >= COUNT - 1


def test_swaps_keep_all_elements_and_copies_do_not() -> None:
    x = torch.randn(64, 64)
    same = [torch.equal(each[0].flatten().sort().values, x.flatten().sort().values) for each in repeats(x)]
    assert 0 < sum(same) < COUNT


def repeats(*inputs: torch.Tensor) -> list[list[Any]]:
    return list(near_repeats(list(inputs), COUNT, ALL))


def stale(outputs: list[Any], right: list[Any], before: list[Any], *, flat: bool = True) -> bool:
    count = len(before)
    earlier = ReferenceAnswer(eager=before, exact=before, shifts=[NO_SHIFT] * count, places=[None] * count)
    return is_stale(outputs, right, earlier, flat=flat)


def test_every_part_of_a_tensor_changes_and_its_beginning_stays() -> None:
    x = torch.randn(60_000)
    places = [int(place) for (now,) in repeats(x) for place in (now != x).nonzero()]
    assert {place // 10_000 for place in places} == set(range(6))
    assert not any(place % 64 == 0 for place in places)


def test_the_ends_of_sorted_indices_stay() -> None:
    x = torch.arange(2048)
    assert all(torch.equal(now[:64], x[:64]) and torch.equal(now[-64:], x[-64:]) for (now,) in repeats(x))


def test_each_input_changes_alone() -> None:
    found = changes([torch.randn(99), torch.randn(99)], torch.randn(99), 3.0)
    assert all(sum(count > 0 for count in counts) == 1 for counts in found)
    assert all(any(counts[number] for counts in found) for number in range(3))


def test_integers_and_booleans_change_only_where_their_order_is_free() -> None:
    offsets, mask = torch.arange(99), torch.ones(99, dtype=torch.bool)
    assert changes(offsets, mask, known={}) == []
    assert {
        tuple(each) for each in changes(offsets, mask, known={"true at random": ALL["true at random"]})
    } == {(0, 1)}


def test_integers_that_a_distribution_leaves_alone_stay() -> None:
    index, offsets = torch.arange(40), torch.arange(0, 40, 4)
    known = {"extreme indices": Distribution(name="extreme indices", only=frozenset({0}))}
    assert all(each[1] == 0 < each[0] for each in changes(index, offsets, known=known))


def test_a_constant_tensor_is_left_alone() -> None:
    assert changes(torch.ones(99)) == [[0]] * COUNT


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.softmax(x, -1),
        lambda x, w: x @ w,
        lambda x, w: x * torch.sigmoid(x),
        lambda x, w: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        lambda x, w: x.cumsum(0),
        lambda x, w: x.argmax(-1),
        lambda x, w: torch.fft.rfft(x),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_old_answers_are_stale_and_rounded_ones_are_not(
    function: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    if dtype is torch.bfloat16 and "fft" in function.__code__.co_names:
        pytest.skip("PyTorch has no such operator")
    x, w = torch.randn(64, 128, dtype=dtype), torch.randn(128, 128, dtype=dtype)
    before = function(x, w)
    shown = 0
    for now in repeats(x, w):
        right = function(*now)
        rounded = right
        if right.is_floating_point():
            rounded = (right * (1 + 0.01 * torch.randn(right.shape))).to(dtype)
        assert not stale([right], [right], [before])
        assert not stale([rounded], [right], [before])
        shown += stale([before], [right], [before])
    assert shown >= 2 or right.dtype is torch.int64  # two or four change x


def test_an_answer_of_which_only_the_changed_row_is_old_is_stale() -> None:
    x = torch.randn(128, 512)
    for (now,) in repeats(x):
        right, before = torch.softmax(now, -1), torch.softmax(x, -1)
        old = (now != x).any(-1)
        mixed = torch.where(old[:, None], before, right)
        assert stale([right, mixed], [right, right], [before, before])


def test_answers_that_hardly_differ_prove_nothing() -> None:
    x = torch.randn(100, 1000) + 100
    (now,) = repeats(x)[1]
    assert not stale([x.sum()], [now.sum()], [x.sum()])
    before, right = x.square().sum(-1), now.square().sum(-1)
    assert not stale([before], [right], [before])
    assert stale([before], [right], [before], flat=False), "strict notices less"


def test_infinities_and_nan_are_left_out() -> None:
    right, before = torch.tensor([torch.nan, torch.inf, 1.0]), torch.tensor([0.0, torch.inf, 2.0])
    assert not stale([right], [right], [before])
    assert stale([torch.tensor([5.0, 5.0, 2.0])], [right], [before])
