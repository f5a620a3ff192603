"""Tensor shapes as text, and the patterns that describe which shapes a kernel supports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_SIZE = re.compile(r"(?P<any>\*)|(?P<low>\d+)(?P<range>\.\.(?P<high>\d*))?")
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


def _extent(shape: Sequence[int]) -> tuple[int, int, int]:
    """The product of the leading sizes, and the last two; 1 for missing ones."""
    *leading, last_but_one, last = (1, 1, *shape)
    return math.prod(leading), last_but_one, last


def fits(pattern: str, shape: Sequence[int]) -> bool:
    """Whether the shape matches the pattern, which has sizes separated by `x`.

    A size is a number, a range `1..4096` or `1..`, or `*`. `%8` after a size requires a multiple of 8. `...`
    in the first place stands for any number of sizes: `...x1..65536` matches any tensor whose last size is at
    most 65536. Raises ValueError for an invalid pattern.
    """
    sizes = pattern.split("x") if pattern else []
    leading = sizes[:1] == ["..."]
    checks = [_size(each, pattern) for each in (sizes[1:] if leading else sizes)]
    if len(shape) < len(checks) or (len(shape) > len(checks) and not leading):
        return False
    last = shape[len(shape) - len(checks) :]
    return all(
        low <= size and (high is None or size <= high) and size % multiple == 0
        for (low, high, multiple), size in zip(checks, last, strict=True)
    )


def _size(text: str, pattern: str) -> tuple[int, int | None, int]:
    """The minimum, the maximum (None: any) and the divisor."""
    parts = _MULTIPLE.fullmatch(text)
    found = _SIZE.fullmatch(parts["size"]) if parts else None
    if parts is None or found is None:
        raise ValueError(f"shape pattern {pattern!r}: invalid size {text!r}; use 8, 1..64, 1.., * or 8..64%8")
    multiple = int(parts["of"] or 1)
    if found["any"]:
        return 0, None, multiple
    low = int(found["low"])
    if found["range"]:
        return low, int(found["high"]) if found["high"] else None, multiple
    return low, low, multiple
