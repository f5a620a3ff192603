"""Shapes: the patterns of the cards, and how far apart two of them are."""

from __future__ import annotations

import pytest

from kernel_library.overrides.shapes import all_fit, distance, fits, near, shape_text, sizes_of


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("4096x65536", [(4096, 65536)], [(4096, 65535), (65536,), (1, 4096, 65536)]),
        ("*x1..8", [(7, 1), (0, 8)], [(7, 9), (7, 0), (8,)]),
        ("...x16..%16", [(16,), (3, 5, 32), (2, 1600)], [(17,), (3, 0), ()]),
        ("*%8x*", [(8, 3), (64, 1)], [(9, 3)]),
        ("...", [(), (1, 2, 3)], []),
        ("", [()], [(1,)]),
        ("nxn", [(3, 3)], [(3, 4), (3,)]),
        ("...xn=1..8%2xn", [(9, 2, 2), (8, 8)], [(3, 3), (10, 10), (2, 4)]),
        ("n%4xm=5", [(8, 5)], [(6, 5), (8, 6)]),
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


@pytest.mark.parametrize("pattern", ["3y", "n=", "x", "nm", "n=n", "1...", "=3"])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="invalid size"):
        fits(pattern, (3, 3))


@pytest.mark.parametrize(
    ("patterns", "shapes", "right"),
    [
        (("mxk", "kxn"), [(2, 3), (3, 4)], True),
        (("mxk", "kxn"), [(2, 3), (2, 4)], False),
        (("mxk", "kxn"), [(2, 3)], True),
        (("bxhxnxd=1..8",) + ("bxhxnxd",) * 2, [(1, 2, 3, 4)] * 3, True),
        (("bxhxnxd=1..8",) + ("bxhxnxd",) * 2, [(1, 2, 3, 4), (1, 1, 3, 4), (1, 1, 3, 4)], False),
        (("...xn", "n"), [(5, 6, 7), (7,)], True),
        (("...xn", "n"), [(5, 6, 7), (6,)], False),
    ],
)
def test_a_letter_is_one_size_in_all_shapes(
    patterns: tuple[str, ...], shapes: list[tuple[int, ...]], right: bool
) -> None:
    assert all_fit(patterns, shapes) is right


@pytest.mark.parametrize(
    ("some", "others", "right"),
    [
        ([(4096, 1024)], [(4096, 1024)], True),
        ([(4096, 1024)], [(5120, 1024)], True),
        ([(4096, 1024)], [(5136, 1024)], False),
        ([(4096, 1024)], [(4096, 1023)], False),
        ([(4097, 1024)], [(4096, 1024)], False),
        ([(7, 4096, 1024)], [(8, 4096, 1024)], True),
        ([(2, 4, 64, 64)], [(8, 1, 64, 64)], True),
        ([(4096,)], [(4096, 1)], False),
        ([(64, 64), (64, 64)], [(64, 64)], True),
        ([(64, 64), (64, 64)], [(64, 64), (64, 512)], False),
        ([(0, 8)], [(0, 8)], True),
    ],
)
def test_near_shapes_are_alike_in_size_and_alignment(
    some: list[tuple[int, ...]], others: list[tuple[int, ...]], right: bool
) -> None:
    assert near(some, others) is near(others, some) is right
