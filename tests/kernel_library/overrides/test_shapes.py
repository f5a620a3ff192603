"""Shapes: the patterns of the cards, and how far apart two of them are."""

from __future__ import annotations

import pytest

from kernel_library.overrides.shapes import distance, fits, shape_text, sizes_of


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("4096x65536", [(4096, 65536)], [(4096, 65535), (65536,), (1, 4096, 65536)]),
        ("*x1..8", [(7, 1), (0, 8)], [(7, 9), (7, 0), (8,)]),
        ("...x16..%16", [(16,), (3, 5, 32), (2, 1600)], [(17,), (3, 0), ()]),
        ("*%8x*", [(8, 3), (64, 1)], [(9, 3)]),
        ("...", [(), (1, 2, 3)], []),
        ("", [()], [(1,)]),
    ],
)
def test_a_pattern_says_which_shapes_are_in_range(
    pattern: str, inside: list[tuple[int, ...]], outside: list[tuple[int, ...]]
) -> None:
    assert [shape for shape in inside if not fits(pattern, shape)] == []
    assert [shape for shape in outside if fits(pattern, shape)] == []


@pytest.mark.parametrize("shape", [(), (7,), (4096, 65536)])
def test_a_shape_is_read_as_it_was_written(shape: tuple[int, ...]) -> None:
    assert sizes_of(shape_text(shape)) == shape


def test_distances_are_in_factors_of_two() -> None:
    square, wide, tall = [(8191, 8191)], [(1023, 65535)], [(65535, 1023)]
    assert distance(square, square) == distance(square, [(1, 8191, 8191), (3,)]) == 0
    assert distance(square, wide) == distance(square, tall) == pytest.approx(6)
    assert distance(wide, tall) == pytest.approx(12), "as many elements, and far apart"
    assert distance([(2, 4, 8191, 64)], [(8, 1, 8191, 64)]) == 0
    assert distance([(7, 3), (7,)], [(7, 3), (15,)]) == pytest.approx(1)
    assert distance([()], [(0,)]) == pytest.approx(1)
