"""How far a model with kernels is from the original, and which kernels are to blame.

Errors are relative: the norm of the difference divided by the norm of the answer, both in float64; of several
outputs the largest counts. The reference is the original model in float64, where that fits into memory, and
the error of the original in its own dtype (eager's error) is the yardstick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ALLOWED = 4.0
"""Multiple of eager's error that a model with kernels may have."""
LEAST_ERROR = 16.0
"""Errors up to this multiple of the dtype's epsilon are always allowed."""


def error_of(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], *, least: float = 0.0) -> float:
    """The largest error of the outputs, relative to their norms, or to `least` where that is larger. It is
    infinite where the outputs differ in number or shape, in which elements are not finite, or in an
    integer."""
    if len(found) != len(wanted):
        return math.inf
    return max((_error(*pair, least) for pair in zip(found, wanted, strict=True)), default=0.0)


def _error(found: torch.Tensor, wanted: torch.Tensor, least: float) -> float:
    import torch

    if found.shape != wanted.shape:
        return math.inf
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(found, wanted) else math.inf
    ours, theirs = found.double(), wanted.double()
    finite = theirs.isfinite()
    if not torch.equal(ours.isfinite(), finite) or not torch.equal(
        ours[~finite].nan_to_num(7.0), theirs[~finite].nan_to_num(7.0)
    ):
        return math.inf
    norm = max(float(theirs[finite].norm()), least)
    off = float((ours[finite] - theirs[finite]).norm())
    return off / norm if norm else (0.0 if off == 0 else math.inf)


def allowed_error(eager_error: float | None, epsilon: float) -> float:
    """The largest error that a model with kernels may have."""
    return max(ALLOWED * (eager_error or 0.0), LEAST_ERROR * epsilon)


def find_guilty(names: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Finds by bisection the kernels to remove so that the others pass. `fails` runs the model with some of
    them. Of kernels that fail only together, the last one is removed."""
    left, out = list(names), []
    while left and fails(left):
        suspects = left
        while len(suspects) > 1:
            middle = len(suspects) // 2
            halves = suspects[:middle], suspects[middle:]
            suspects = next((half for half in halves if fails(half)), suspects[-1:])
        out.append(suspects[0])
        left = [each for each in left if each != suspects[0]]
    return out
