"""The patterns of the cards: which shapes they describe."""

from __future__ import annotations

import pytest

from kernel_library.shapes import fits


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
