"""The elements that are first, last or at a border for some reduction."""

from __future__ import annotations

import math
import random

import pytest

from evaluators.reference.accuracy.differences import index_in
from evaluators.reference.inputs.border_places import TILES, border_places, reduced_sets


def test_every_set_of_up_to_four_dimensions_is_there_once() -> None:
    for count in range(5):
        found = reduced_sets(range(count))
        assert len(found) == len({*found}) == 2**count - 1
    assert reduced_sets([0, 1, 2])[:3] == [(2,), (1, 2), (0, 1, 2)]


def test_more_dimensions_have_the_usual_sets() -> None:
    found = reduced_sets(range(6))
    assert len(found) == len({*found}) == 6 + 5 + 5
    assert {(2, 3, 4, 5), (3,), (0, 2, 3, 4, 5)} <= {*found}


@pytest.mark.parametrize("shape", [(50,), (40, 3000), (8, 16, 32), (4, 1, 30, 5), (2, 3, 4, 5, 6)])
def test_places_are_different_elements(shape: tuple[int, ...]) -> None:
    found = list(border_places(shape, random.Random(0)))
    assert len({place for place, _ in found}) == len(found)
    assert all(0 <= place < math.prod(shape) for place, _ in found)


def test_each_set_has_first_and_last_elements_and_borders() -> None:
    rows, columns = 64, 4000
    ends = {0: set[int](), 1: set[int]()}
    for seed in range(20):
        for place, count in border_places((rows, columns), random.Random(seed)):
            index = index_in(place, (rows, columns))
            if count < rows * columns:
                axis = 1 if count == columns else 0
                ends[axis].add(index[axis])
    assert {0, rows - 1} <= ends[0] and {0, columns - 1} <= ends[1]
    inner = ends[1] - {0, columns - 1}
    assert len(inner) > 20
    assert all(any(each % tile in (0, tile - 1) for tile in TILES) for each in inner)


def test_few_rows_have_few_outliers_each() -> None:
    found = [count for _, count in border_places((2, 100_000), random.Random(0))]
    assert found.count(100_000) <= 3, "first, last and one border for the rows"


def test_a_single_element_has_no_border() -> None:
    assert not list(border_places((1, 1), random.Random(0)))
