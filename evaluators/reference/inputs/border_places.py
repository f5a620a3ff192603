"""Elements that kernels single out: the first, the last and those at the borders of tiles and warps.

A kernel may take the first element of what it reduces as an estimate of the mean, or read across the end of
a row into the next. Which elements these are depends on the dimensions that are reduced, which only the
kernel knows, so every set of dimensions gets its share."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

TILES = (16, 32, 64, 128, 256, 512, 1024)
"""Usual sizes of tiles and blocks of threads."""
ENDS = ("first", "last", "border")
MOST_TURNS, ROWS_PER_TURN = 4, 8
"""Elements of each kind for a set of dimensions, and the rows that each further one needs: with several
outliers in one row, its variance is theirs."""
MOST_AXES = 4
"""Tensors of more dimensions use only the usual sets of them."""


def border_places(shape: Sequence[int], dice: random.Random) -> Iterator[tuple[int, int]]:
    """Different elements: each one's place in the flattened tensor, and the number of elements that are
    reduced together with it. For each set of dimensions in turn, the element is the first, the last, or next
    to a tile's border along these dimensions, and anywhere along the others. None for a single element."""
    sets = reduced_sets([axis for axis, size in enumerate(shape) if size > 1])
    found: set[int] = set()
    for turn, end, reduced in itertools.product(range(MOST_TURNS), ENDS, sets):
        count = math.prod(shape[axis] for axis in reduced)
        if turn and turn * ROWS_PER_TURN >= math.prod(shape) // count:
            continue
        within, place, step = _along(end, count, dice), 0, 1
        for axis in reversed(range(len(shape))):
            if axis in reduced:
                within, index = divmod(within, shape[axis])
            else:
                index = dice.randrange(shape[axis])
            place, step = place + index * step, step * shape[axis]
        if place not in found:
            found.add(place)
            yield place, count


def reduced_sets(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """The sets of dimensions that a reduction may run over, the usual ones first: the last few, each one,
    all but one, and the rest."""
    suffixes = [tuple(axes[start:]) for start in reversed(range(len(axes)))]
    singles = [(axis,) for axis in axes]
    rest = [tuple(each for each in axes if each != axis) for axis in axes]
    if len(axes) <= MOST_AXES:
        rest += [chosen for size in range(1, len(axes)) for chosen in itertools.combinations(axes, size)]
    return [each for each in dict.fromkeys([*suffixes, *singles, *rest]) if each]


def _along(end: str, count: int, dice: random.Random) -> int:
    """The number of an element out of `count`."""
    sizes = [tile for tile in TILES if tile < count]
    if end == "first" or (end == "border" and not sizes):
        return 0
    if end == "last":
        return count - 1
    tile = dice.choice(sizes)
    return tile * dice.randint(1, (count - 1) // tile) - dice.randrange(2)
