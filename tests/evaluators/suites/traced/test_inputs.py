"""Arguments made for traced calls: every operator here runs on them, and indices are where they may be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evaluators.reference.containers import tensors_in
from evaluators.suites.traced.call import DTYPES
from evaluators.suites.traced.grammar import call_of
from evaluators.suites.traced.inputs import base_of, make_arguments, operator_of


def made(operator: str, text: str, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    return make_arguments(call_of(f"aten.{operator}", text), "cpu", seed)


INDEXED = [
    ("embedding.default", "((T([7, 4], f32), T([300], i64)), {})", 1, 7),
    ("embedding_dense_backward.default", "((T([300, 4], f32), T([300], i64), 7, -1, False), {})", 1, 7),
    ("gather.default", "((T([300, 5], f32), -1, T([300, 5], i64)), {})", 2, 5),
    ("scatter_add.default", "((T([5, 90], f32), 0, T([60, 90], i64), T([60, 90], f32)), {})", 2, 5),
    ("scatter_.value", "((T([200, 5], f32), 1, T([200, 1], i64), 1.0), {})", 2, 5),
    ("index_select.default", "((T([3, 6], f32), 1, T([200], i64)), {})", 2, 6),
    ("index_add.default", "((T([6, 3], f32), 0, T([200], i32), T([200, 3], f32)), {})", 2, 6),
    ("take.default", "((T([3, 4], f32), T([200], i64)), {})", 1, 12),
    ("nll_loss_forward.default", "((T([200, 9], f32), T([200], i64), None, 1, -100), {})", 1, 9),
    ("nll_loss2d_forward.default", "((T([2, 9, 8, 8], f32), T([2, 8, 8], i64), None, 1, -100), {})", 1, 9),
    ("cross_entropy_loss.default", "((T([200, 9], f32), T([200], i64)), {})", 1, 9),
    ("gather.default", "((T([300, 5], f32), 1, T([300, 5], i64, [1, 300])), {})", 2, 5),
    (
        "max_pool2d_with_indices_backward.default",
        "((T([2, 3, 4, 4], f32), T([2, 3, 8, 8], f32), [2, 2], [2, 2], [0, 0], [1, 1], False,"
        " T([2, 3, 4, 4], i64)), {})",
        7,
        64,
    ),
]


@pytest.mark.parametrize(("operator", "text", "place", "below"), INDEXED)
def test_indices_are_in_range_and_use_it(operator: str, text: str, place: int, below: int) -> None:
    """All of the range but for chance, and the operator, which checks them on the CPU, takes them."""
    arguments, keywords = made(operator, text)
    found = arguments[place]
    assert int(found.min()) >= 0 and int(found.max()) < below
    assert int(found.max()) >= min(below, 10) - 1 or below > 10
    operator_of(f"aten.{operator}")(*arguments, **keywords)


def test_a_list_of_indices_is_in_range_by_dimension() -> None:
    text = "((T([3, 50, 7], f32), [T([400], i64), None, T([400], i64)]), {})"
    arguments, _ = made("index.Tensor", text)
    first, none, last = arguments[1]
    assert none is None
    assert set(first.tolist()) == set(range(3)) and set(last.tolist()) == set(range(7))
    assert torch.ops.aten.index.Tensor(*arguments).shape == (400, 50)


def test_a_mask_takes_as_many_dimensions_as_it_has() -> None:
    text = "((T([3, 50, 7], f32), [T([3, 50], b8), T([1], i64)]), {})"
    arguments, _ = made("index.Tensor", text)
    assert arguments[1][0].dtype is torch.bool and 0 <= int(arguments[1][1]) < 7
    torch.ops.aten.index.Tensor(*arguments)


@pytest.mark.parametrize(
    "operator", ["floor_divide.default", "remainder.Tensor", "fmod_.Tensor", "div.Tensor"]
)
def test_no_whole_number_is_divided_by_zero(operator: str) -> None:
    (_, divisor), _ = made(operator, "((T([300], i64), T([300], i64)), {})")
    assert divisor.min() > 0
    (one, _), _ = made("mul.Tensor", "((T([300], i64), T([300], i64)), {})")
    assert one.min() == 0


@pytest.mark.parametrize(
    ("operator", "number", "values"),
    [
        ("floor_divide.default", 90, 2),
        ("remainder.Scalar", 90, 8),
        ("eq.Scalar", -100, 2),
        ("ge.Scalar", 474, 2),
        ("clamp.default", 128, 8),
    ],
)
def test_whole_numbers_are_near_the_one_that_they_meet(operator: str, number: int, values: int) -> None:
    """Or all results would be the same, or the input."""
    (x, *rest), _ = made(operator, f"((T([300], i64), {'0, ' * (operator[0] == 'c')}{number}), {{}})")
    base, overload = operator.split(".")
    found = getattr(getattr(torch.ops.aten, base), overload)(x, *rest)
    assert len(found.unique()) >= values
    assert not torch.equal(found, x)


def test_a_size_and_a_number_beyond_the_type_are_not_met() -> None:
    for operator, text in (
        ("topk.default", "((T([300], i64), 50), {})"),
        ("eq.Scalar", "((T([300], u8), 300), {})"),
    ):
        (x, *_), _ = made(operator, text)
        assert x.max() < 10


def test_what_writes_gets_no_index_twice() -> None:
    """What is there in the end would otherwise depend on the order of the writes."""
    text = "((T([40, 9], f32), 0, T([40, 9], i64, [1, 40]), T([40, 9], f32)), {})"
    index = made("scatter.src", text)[0][2]
    assert index.stride() == (1, 40)
    assert all(sorted(column) == list(range(40)) for column in index.T.tolist())


def test_more_than_there_are_places_for_is_not_written() -> None:
    with pytest.raises(ValueError, match="7 unique indices do not exist below 5"):
        made("scatter.src", "((T([10, 5], f32), 1, T([10, 7], i64), T([10, 7], f32)), {})")


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        ("index_copy.default", "((T([3, 40], f32), 1, T([40], i64), T([3, 40], f32)), {})"),
        ("put.default", "((T([5, 8], f32), T([40], i64), T([40], f32)), {})"),
        ("index_put.default", "((T([40, 3], f32), [T([40], i64)], T([40, 3], f32)), {})"),
        ("index_put_.default", "((T([3, 40], f32), [None, T([40], i64)], T([3, 40], f32)), {})"),
    ],
)
def test_a_flat_index_that_is_written_to_is_there_once(operator: str, text: str) -> None:
    arguments, _ = made(operator, text)
    (index,) = [each for each in tensors_in(arguments) if each.dtype is torch.int64]
    assert sorted(index.tolist()) == list(range(40)) and index.tolist() != list(range(40))
    operator_of(f"aten.{operator}")(*arguments)


@pytest.mark.parametrize(
    ("operator", "text", "flat"),
    [
        ("max_unpool2d.default", "((T([5, 4, 3, 8], f32), T([5, 4, 3, 8], i64), [6, 5]), {})", 30),
        (
            "max_unpool3d.default",
            "((T([2, 2, 2, 6, 3], f32), T([2, 2, 2, 6, 3], i64, [72, 1, 36, 6, 2]), "
            "[3, 6, 5], [1, 1, 1], [0, 0, 0]), {})",
            90,
        ),
    ],
)
def test_what_unpools_writes_each_place_once(operator: str, text: str, flat: int) -> None:
    arguments, _ = made(operator, text)
    x, indices = arguments[:2]
    for plane in indices.flatten(-(x.dim() - 2)).flatten(0, 1).tolist():
        assert len({*plane}) == len(plane)
        assert min(plane) >= 0 and max(plane) < flat
    assert indices.max() >= 10, "not only at the beginning"
    operator_of(f"aten.{operator}")(*arguments)


def test_what_does_not_fit_in_is_not_unpooled() -> None:
    with pytest.raises(ValueError, match="42 unique indices do not exist below 18"):
        made("max_unpool2d.default", "((T([1, 7, 7, 6], f32), T([1, 7, 7, 6], i64), [3, 6]), {})")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("((T([5], f32), 'max'), {'lengths': T([4], i64), 'unsafe': True, 'initial': 1})", "lengths"),
        ("((T([3, 9], f32), 'sum'), {'lengths': T([3, 4], i64), 'axis': 1, 'unsafe': True})", "lengths"),
        ("((T([9, 3], f32), 'sum'), {'offsets': T([5], i64), 'unsafe': True})", "offsets"),
    ],
)
def test_segments_are_of_the_data_and_take_all_of_it(text: str, name: str) -> None:
    (data, *rest), keywords = made("segment_reduce.default", text)
    given, size = keywords[name], data.shape[keywords.get("axis", 0)]
    lengths = given if name == "lengths" else given.diff()
    assert lengths.min() >= 0 and (lengths.sum(-1) == size).all()
    torch.segment_reduce(data, *rest, **{**keywords, "unsafe": False})


def test_bags_begin_at_the_start_and_in_order() -> None:
    arguments, _ = made("_embedding_bag.default", "((T([9, 4], f32), T([30], i64), T([5], i64)), {})")
    offsets = arguments[2].tolist()
    assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= 30
    torch.ops.aten._embedding_bag.default(*arguments)


@pytest.mark.parametrize(
    "form", ["[4, 6], f32, [1, 4]", "[4, 6], f32, [6, 0]", "[4, 6], i64, [20, 2]", "[0, 6], f16, [6, 1]"]
)
def test_strides_are_those_of_the_call(form: str) -> None:
    (tensor,), _ = made("relu.default", f"((T({form}),), {{}})")
    stride = form.rpartition("[")[2].rstrip("]").split(", ")
    assert tensor.stride() == tuple(map(int, stride))


@pytest.mark.parametrize("short", ["bf16", "f64", "f16", "c64", "i8", "u8", "b8", "f8e4m3fn"])
def test_every_type_can_be_drawn(short: str) -> None:
    (tensor,), _ = made("relu.default", f"((T([64], {short}),), {{}})")
    assert tensor.dtype is getattr(torch, DTYPES[short])
    assert len(set(tensor.to(torch.complex64).tolist())) > 1


def test_numbers_depend_only_on_the_seed() -> None:
    text = "((T([64], f32), T([64], f32)), {'alpha': 2})"
    (first, second), keywords = made("add.Tensor", text)
    assert keywords == {"alpha": 2}
    assert torch.equal(first, made("add.Tensor", text)[0][0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, made("add.Tensor", text, seed=1)[0][0])
    assert float(first.min()) < 0 < float(first.max())


def test_types_and_devices_are_those_of_torch() -> None:
    """A call that was traced on a GPU is made on the device that is wanted."""
    text = "(([2, 3],), {'dtype': f16, 'layout': torch.strided, 'device': torch.device('cuda:0')})"
    arguments, keywords = made("zeros.default", text)
    assert keywords == {"dtype": torch.float16, "layout": torch.strided, "device": torch.device("cpu")}
    assert torch.ops.aten.zeros.default(*arguments, **keywords).shape == (2, 3)
    assert made("zeros.default", "(([2],), {'device': 'cuda'})")[1] == {"device": torch.device("cpu")}


def test_a_tensor_of_the_cpu_stays_there() -> None:
    text = "((T([2], f32), T([], f32, None, 'cpu')), {})"
    (own, scalar), _ = make_arguments(call_of("aten.add.Tensor", text), "meta", 0)
    assert (own.device.type, scalar.device.type) == ("meta", "cpu")


def test_probabilities_are_probabilities() -> None:
    (tensor,), _ = made("bernoulli.default", "((T([500], f32),), {})")
    assert float(tensor.min()) >= 0 and float(tensor.max()) <= 1


@pytest.mark.parametrize(
    ("operator", "text", "why"),
    [
        ("no_such.default", "((), {})", "this PyTorch has no operator aten.no_such.default"),
        (
            "relu.default",
            "((T([2], f32), 1), {})",
            "other arguments than aten.relu.default takes: self",
        ),
        (
            "relu.default",
            "((T([2], f32),), {'x': 1})",
            "other arguments than aten.relu.default takes: self",
        ),
        ("index_select.default", "((T([0], f32), 0, T([2], i64)), {})", "nothing to index"),
        ("index_select.default", "((T([2], f32), 0.5, T([2], i64)), {})", "a whole number is expected"),
        ("embedding.default", "((1, T([2], i64)), {})", "the arguments do not fit aten.embedding.default"),
        ("gather.default", "((T([2], f32), 3, T([2], i64)), {})", "the arguments do not fit"),
    ],
)
def test_invalid_calls_are_refused_with_a_reason(operator: str, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        made(operator, text)


def test_names_of_variants_have_one_base() -> None:
    names = ["aten.index_put_.default", "aten._index_put_impl_.default", "aten.relu"]
    assert [base_of(name) for name in names] == ["index_put", "index_put_impl", "relu"]
