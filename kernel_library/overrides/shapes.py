"""Tensor shapes as text, and the patterns that describe which shapes a kernel supports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

_SIZE = re.compile(r"(?P<any>\*)|(?P<low>\d+)(?P<range>\.\.(?P<high>\d*))?")
_NAMED = re.compile(r"(?P<name>[a-wyz])(=(?P<size>.+))?")
NEAR = 1.25
"""Shapes are near each other if no size differs by more than this factor."""
ALIGNMENT = 16
"""Kernels read up to this number of elements at once. Whether a size allows that changes their speed."""
_MULTIPLE = re.compile(r"(?P<size>[^%]+)(%(?P<of>[1-9]\d*))?")


def shape_text(shape: Sequence[int]) -> str:
    """A shape as text: `4096x65536`."""
    return "x".join(map(str, shape))


def sizes_of(text: str) -> tuple[int, ...]:
    """The inverse of `shape_text`. Raises ValueError."""
    return tuple(map(int, text.split("x"))) if text else ()


def distance(some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> float:
    """How far apart the shapes of two calls' inputs are, in factors of two, summed over the last two sizes of
    each tensor and the product of the sizes before them. Tensors that only one call has are ignored."""
    return sum(
        abs(math.log2(1 + one) - math.log2(1 + other))
        for shape, like in zip(some, others, strict=False)
        for one, other in zip(_extent(shape), _extent(like), strict=True)
    )


def near(some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> bool:
    """Whether a measurement of a call with one list of shapes tells about a call with the other list: no
    size differs by more than the factor NEAR, and the last two sizes of each tensor are multiples of the
    same powers of two up to ALIGNMENT. The sizes before the last two count as their product. Tensors that
    only one call has are ignored."""
    pairs = [
        pair
        for shape, like in zip(some, others, strict=False)
        for pair in zip(_extent(shape), _extent(like), strict=True)
    ]
    close = all(max(pair) <= NEAR * min(pair) for pair in pairs)
    aligned = all(
        math.gcd(one, ALIGNMENT) == math.gcd(other, ALIGNMENT)
        for place, (one, other) in enumerate(pairs)
        if place % 3
    )
    return close and aligned


def _extent(shape: Sequence[int]) -> tuple[int, int, int]:
    """The product of the leading sizes, and the last two; 1 for missing ones."""
    *leading, last_but_one, last = (1, 1, *shape)
    return math.prod(leading), last_but_one, last


def fits(pattern: str, shape: Sequence[int]) -> bool:
    """Whether the shape matches the pattern, which has sizes separated by `x`.

    A size is a number, a range `1..4096` or `1..`, or `*`. `%8` after a size requires a multiple of 8. A
    letter other than `x`, as in `n` or `n=1..64%8`, requires the same size wherever it occurs. `...` in the
    first place stands for any number of sizes: `...x1..65536` matches any tensor whose last size is at most
    65536. Raises ValueError for an invalid pattern.
    """
    return _matches(pattern, shape, {})


def all_fit(patterns: Sequence[str], shapes: Sequence[Sequence[int]]) -> bool:
    """Whether each shape matches the pattern in its place. A name stands for one size in all patterns:
    `mxk`, `kxn` are the factors of a product. The longer list's end is ignored."""
    named: dict[str, int] = {}
    return all(_matches(*pair, named) for pair in zip(patterns, shapes, strict=False))


def _matches(pattern: str, shape: Sequence[int], named: dict[str, int]) -> bool:
    sizes = pattern.split("x") if pattern else []
    leading = sizes[:1] == ["..."]
    checks = [_size(each, pattern) for each in (sizes[1:] if leading else sizes)]
    if len(shape) < len(checks) or (len(shape) > len(checks) and not leading):
        return False
    last = shape[len(shape) - len(checks) :]
    return all(
        each.low <= size
        and (each.high is None or size <= each.high)
        and size % each.multiple == 0
        and (not each.name or named.setdefault(each.name, size) == size)
        for each, size in zip(checks, last, strict=True)
    )


class _Size(NamedTuple):
    """A size of a pattern: its minimum, maximum (None: any), divisor, and name ("" for none)."""

    low: int
    high: int | None
    multiple: int
    name: str


def _size(text: str, pattern: str) -> _Size:
    parts = _MULTIPLE.fullmatch(text)
    size = parts["size"] if parts else ""
    name = ""
    if named := _NAMED.fullmatch(size):
        name, size = named["name"], named["size"] or "*"
    found = _SIZE.fullmatch(size)
    if parts is None or found is None:
        raise ValueError(
            f"shape pattern {pattern!r}: invalid size {text!r}; use 8, 1..64, 1.., *, 8..64%8, n or n=1..64"
        )
    multiple = int(parts["of"] or 1)
    if found["any"]:
        return _Size(0, None, multiple, name)
    low = int(found["low"])
    if found["range"]:
        return _Size(low, int(found["high"]) if found["high"] else None, multiple, name)
    return _Size(low, low, multiple, name)
