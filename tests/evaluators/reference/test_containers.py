"""Values in lists, tuples and dicts: the order of their tensors, and their form as JSON."""

from __future__ import annotations

import gc
import json
import re
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import make_dataclass
from typing import Any

import pytest
import torch

from evaluators.reference.containers import (
    WrongForm,
    filled,
    form_of,
    map_tensors,
    replaced,
    template_of,
    tensors_in,
    tensors_like,
    tensors_of,
)

ONE, TWO, THREE = torch.ones(1), torch.zeros(2, dtype=torch.int64), torch.ones(3)
Pair = namedtuple("Pair", "first second")
Turned = namedtuple("Turned", "second first")
Result, Other = make_dataclass("Result", ["a", "b"]), make_dataclass("Other", ["b", "a"])


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (ONE, [ONE]),
        ((ONE, TWO), [ONE, TWO]),
        ([TWO, (ONE, [THREE])], [TWO, ONE, THREE]),
        ({"b": ONE, "a": TWO}, [TWO, ONE]),
        ((ONE, None), [ONE]),
        (Pair(ONE, {"x": TWO}), [ONE, TWO]),
        (Result(ONE, [TWO, None]), [ONE, TWO]),
    ],
)
def test_outputs_by_their_tensors(output: Any, expected: list[torch.Tensor]) -> None:
    assert [id(each) for each in tensors_of(output)] == [id(each) for each in expected]


@pytest.mark.parametrize("output", [None, 1.0, (), [], {}, (ONE, 1.0), "tensor", {"x": ...}], ids=repr)
def test_no_other_output_is_taken(output: Any) -> None:
    with pytest.raises(TypeError, match=r"the output (contains|is) a"):
        tensors_of(output)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (ONE, torch.nn.Parameter(ONE)),
        ((ONE, TWO), [ONE, TWO]),
        ([ONE, (TWO,)], (ONE, [TWO])),
        ([ONE, TWO], Pair(ONE, TWO)),
        (torch.max(torch.ones(2, 2), 0), (ONE, TWO)),
        ({"a": ONE, "b": {"c": TWO}}, OrderedDict(b={"c": TWO}, a=ONE)),
        ({1: ONE, "1": TWO}, {1: ONE, "1": TWO}),
        (Pair(ONE, None), namedtuple("Twin", "first second")(ONE, None)),
        (Result(ONE, TWO), Other(a=ONE, b=TWO)),
        ((ONE, [], {}, None), [ONE, (), {}, None]),
    ],
    ids=repr,
)
def test_outputs_that_a_caller_uses_alike(expected: Any, found: Any) -> None:
    form = json.loads(json.dumps(form_of(expected)))
    count = len(tensors_of(expected))
    assert [id(each) for each in tensors_like(found, form)] == [id(each) for each in tensors_of(found)]
    assert len(tensors_of(found)) == count


@pytest.mark.parametrize(
    ("expected", "found", "message"),
    [
        (ONE, [ONE], "the output is a list of 1; the reference's is a tensor"),
        (
            ONE,
            {"anything": (None, ONE)},
            "the output is a dict with the key 'anything'; the reference's is a",
        ),
        (ONE, (ONE, None), "the output is a tuple of 2; the reference's is a tensor"),
        ((ONE,), ONE, "the output is a tensor; the reference's is a tuple of 1"),
        ((ONE, None), (ONE,), "a tuple of 1; the reference's is a tuple of 2"),
        ((ONE, None), (ONE, TWO), r"the output[1] is a tensor; the reference's is None"),
        ((ONE, TWO), (ONE, None), r"the output[1] is None; the reference's is a tensor"),
        ((ONE, []), (ONE,), "a tuple of 1; the reference's is a tuple of 2"),
        ((ONE, []), (ONE, None), r"the output[1] is None; the reference's is a list of 0"),
        ((ONE, {}), (ONE, []), r"the output[1] is a list of 0; the reference's is an empty dict"),
        ({"a": ONE}, {"b": ONE}, "with the key 'b'; the reference's is a dict with the key 'a'"),
        ({"a": ONE}, {"a": ONE, "b": None}, "with the keys 'a', 'b'; the"),
        ({1: ONE}, {"1": ONE}, "with the key '1'; the reference's is a dict with the key 1"),
        ({"a": {"b": ONE}}, {"a": {"c": ONE}}, r"the output['a'] is a dict with the key 'c'"),
        ({"a": ONE}, [ONE], "the output is a list of 1; the reference's is a dict"),
        (
            Pair(ONE, TWO),
            (ONE, TWO),
            "a tuple of 2; the reference's is a named tuple with the fields",
        ),
        (Pair(ONE, TWO), Turned(ONE, TWO), "a named tuple with the fields second, first; the"),
        (Result(ONE, TWO), {"a": ONE, "b": TWO}, "is a dataclass with the fields a, b"),
        (Result(ONE, TWO), Pair(ONE, TWO), "is a dataclass with the fields a, b"),
        ((ONE, TWO), (ONE, 1.0), r"the output[1] is a float; the reference's is a tensor"),
        (ONE, None, "the output is None; the reference's is a tensor"),
        (ONE, {ONE}, "the output is a set; the reference's is a tensor"),
        ((ONE, None), (ONE, 0), r"the output[1] is a int; the reference's is None"),
    ],
    ids=repr,
)
def test_outputs_of_another_structure(expected: Any, found: Any, message: str) -> None:
    with pytest.raises(WrongForm, match=re.escape(message)):
        tensors_like(found, form_of(expected))


def test_a_template_goes_through_json_and_is_filled() -> None:
    value = [ONE, {"k": (TWO, 3, None), "a": "name"}, [True, 2.5, THREE]]
    assert list(map(id, tensors_in(value))) == list(map(id, (ONE, TWO, THREE)))
    template = json.loads(json.dumps(template_of(value)))
    assert filled(template, ["x", "y", "z"]) == ["x", {"a": "name", "k": ("y", 3, None)}, [True, 2.5, "z"]]
    learned = filled(template_of([torch.ones(1, requires_grad=True), ONE]), [torch.ones(1), torch.ones(1)])
    assert [each.requires_grad for each in learned] == [True, False]


def test_unsupported_input_leaves_are_refused() -> None:
    with pytest.raises(TypeError, match="an input contains a device"):
        template_of([ONE, torch.device("cpu")])


def test_tensors_change_in_their_places() -> None:
    value = (ONE, [TWO, 5], Pair(THREE, 1))
    doubled = map_tensors(lambda t: t * 2, value)
    assert isinstance(doubled[2], Pair) and doubled[2].first.tolist() == [2, 2, 2] and doubled[1][1] == 5
    assert replaced(value, [1, 2, 3]) == (1, [2, 5], Pair(3, 1))


@pytest.mark.slow
def test_nothing_keeps_an_output_alive_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        tensor = torch.ones(3)
        alive = weakref.ref(tensor)
        tensors_like([tensor, {"x": tensor}], form_of(tensors := [tensor, {"x": tensor}]))
        tensors_of(tensors)
        del tensors
        tensors_in([tensor])
        del tensor
        assert alive() is None
    finally:
        gc.enable()
