"""Operators by name, and their forms by their schemas."""

from __future__ import annotations

import pytest

from kernel_library.overrides.operators import operator


@pytest.mark.parametrize(
    ("name", "functional", "in_place", "outs", "composite"),
    [
        ("relu_", "aten.relu.default", ["aten.relu_.default"], ["aten.relu.out"], False),
        ("aten::addmm", "aten.addmm.default", ["aten.addmm_.default"], ["aten.addmm.out"], False),
        ("aten.add.out", "aten.add.Tensor", ["aten.add_.Tensor"], ["aten.add.out"], False),
        ("aten.sum.IntList_out", "aten.sum.dim_IntList", [], ["aten.sum.IntList_out"], False),
        (
            "aten.native_layer_norm",
            "aten.native_layer_norm.default",
            [],
            ["aten.native_layer_norm.out"],
            False,
        ),
        ("aten.__and__.Tensor", "aten.__and__.Tensor", [], [], True),
        ("aten.softmax.int", "aten.softmax.int", [], ["aten.softmax.int_out"], True),
    ],
)
def test_forms(name: str, functional: str, in_place: list[str], outs: list[str], composite: bool) -> None:
    found = operator(name)
    assert found.name == functional
    assert [str(each) for each in found.in_place] == in_place
    assert [str(each) for each in found.outs] == outs
    assert found.composite is composite


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aten.sofmax", "torch has no operator aten.sofmax; did you mean aten.softmax?"),
        ("aten.add", "aten.add has several overloads; choose one of aten.add.Tensor, aten.add.Scalar"),
        ("aten.sum.foo", "aten.sum has no overload foo; choose one of aten.sum.dim_IntList"),
        ("aten.t", "aten.t.default is a view"),
        ("a b", "torch has no operator a b"),
    ],
)
def test_what_cannot_be_overridden(name: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        operator(name)
    assert str(error.value).startswith(said)
