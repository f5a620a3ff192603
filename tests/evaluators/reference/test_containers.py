"""Values in lists, tuples and dicts: the order of their tensors, and their form as JSON."""

from __future__ import annotations

import gc
import json
import weakref
from collections import namedtuple
from typing import Any

import pytest
import torch

from evaluators.reference.containers import filled, map_tensors, replaced, template_of, tensors_in, tensors_of

ONE, TWO, THREE = torch.ones(1), torch.zeros(2, dtype=torch.int64), torch.ones(3)
Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (ONE, [ONE]),
        ((ONE, TWO), [ONE, TWO]),
        ([TWO, (ONE, [THREE])], [TWO, ONE, THREE]),
        ({"b": ONE, "a": TWO}, [TWO, ONE]),
        ((ONE, None), [ONE]),
        (Pair(ONE, {"x": TWO}), [ONE, TWO]),
    ],
)
def test_outputs_by_their_tensors(output: Any, expected: list[torch.Tensor]) -> None:
    assert [id(each) for each in tensors_of(output)] == [id(each) for each in expected]


@pytest.mark.parametrize("output", [None, 1.0, (), [], {}, (ONE, 1.0), "tensor", {"x": ...}], ids=repr)
def test_no_other_output_is_taken(output: Any) -> None:
    with pytest.raises(TypeError, match=r"the output (contains|is) a"):
        tensors_of(output)


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
        tensors_of([tensor, {"x": tensor}])
        tensors_in([tensor])
        del tensor
        assert alive() is None
    finally:
        gc.enable()
