"""Differences between outputs: their norms, the largest, and the first that is too large.

Outputs are processed in chunks: several float64 copies of an output of some GB would not fit in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Chunk = tuple[torch.Tensor, ...]
    """The same elements of a candidate's output, the right answer and eager's."""

CHUNK = 2**26
"""Elements per chunk."""


def as_pairs(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones in an extra last dimension; other tensors as they are."""
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def distance(moved: torch.Tensor, ref: torch.Tensor) -> tuple[float, float]:
    """The rms of the difference over the elements, and the largest (see `Shift`)."""
    if not (ref.is_floating_point() or ref.is_complex()) or not ref.numel():
        return 0.0, 0.0
    moved, ref = as_pairs(moved), as_pairs(ref)
    parts = [_distances(*pair) for pair in chunks_of(moved, ref)]
    return math.hypot(*(norm for norm, _ in parts)) / math.sqrt(ref.numel()), max(most for _, most in parts)


def _distances(moved: torch.Tensor, ref: torch.Tensor) -> tuple[float, float]:
    """The Euclidean norm of the difference and its largest element, where `ref` is finite; infinite if
    `moved` is not finite there."""
    import torch

    norm, exact = torch.linalg.vector_norm, ref.double()
    error = _error(moved, exact)
    norms = float(norm(error)), float(largest_of(error))
    if not all(map(math.isfinite, norms)):
        error = error.where(exact.isfinite(), 0.0).nan_to_num(math.inf, math.inf, math.inf)
        norms = float(norm(error)), float(largest_of(error))
    return norms


def _error(out: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The error in float64, which is the type of `exact`."""
    import torch

    return out - exact if out.dtype == exact.dtype else out.to(torch.float64).sub_(exact)


def largest_of(tensor: torch.Tensor) -> torch.Tensor:
    """The largest absolute value; NaN if one is. Six times as fast as the infinity norm on a CPU."""
    import torch

    low, high = tensor.aminmax()
    return torch.maximum(-low, high)


def chunks_of(*tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """The elements of equally sized tensors, CHUNK at a time."""
    import torch

    return list(zip(*(torch.split(each.reshape(-1), CHUNK) for each in tensors), strict=True))


def rms_of(eager: torch.Tensor, ref: torch.Tensor) -> tuple[float, float]:
    """The rms of eager's error and of the answer, over the elements where both are finite; 0 if there are
    none."""
    if not eager.numel():
        return 0.0, 0.0
    eager, ref = as_pairs(eager), as_pairs(ref)
    chunks = chunks_of(eager, ref)
    norms = _euclidean(chunks)
    if not all(map(math.isfinite, norms)):
        norms = _euclidean(chunks, finite=True)
    return norms[0] / math.sqrt(eager.numel()), norms[1] / math.sqrt(eager.numel())


def _euclidean(chunks: list[Chunk], *, finite: bool = False) -> list[float]:
    """Norms of eager's error and of the answer; `chunks` have eager's answer and the right one."""
    import torch

    norm = torch.linalg.vector_norm
    parts = []
    for own, ref in chunks:
        exact = ref.double()
        both = [_error(own, exact), exact]
        if finite:
            kept = _finite(ref, own)
            both = [each.where(kept, 0.0) for each in both]
        parts.append(torch.stack([norm(each) for each in both]))
    norms: list[float] = norm(torch.stack(parts), dim=0).tolist()
    return norms


def about_equal(one: torch.Tensor, other: torch.Tensor, most: float) -> bool:
    """Whether both have one shape and differ by at most `most`, normwise; integers must be equal."""
    if one.shape != other.shape:
        return False
    if not (other.is_floating_point() or other.is_complex()):
        return bool((one == other).all())
    error, scale = rms_of(one, other)
    return error <= most * scale


def spread_of(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """How far apart two answers to the same inputs are, normwise, for the worst output; for integers, the
    share of elements that differ."""
    import torch

    found = [0.0]
    for a, b in zip(one, other, strict=True):
        if torch.equal(a, b):
            continue
        if a.is_floating_point() or a.is_complex():
            error, scale = rms_of(a, b)
            found.append(error / max(scale, 1e-300))
        else:
            found.append(float((a != b).double().mean()))
    return max(found)


def norms_of(chunks: list[Chunk], *, finite: bool = False) -> tuple[list[float], list[float]]:
    """Euclidean norms and largest elements, in float64, of the error, of eager's error, and of the answer;
    with `finite`, only where they are finite."""
    import torch

    norm = torch.linalg.vector_norm
    parts = []
    for out, ref, own in chunks:
        exact = ref.double()
        three = [_error(out, exact), _error(own, exact), exact]
        if finite:
            both, right = _finite(ref, own), _finite(ref, own) | _only_ours(ref, own)
            masks = (right & out.isfinite(), both, right)
            three = [each.where(kept, 0.0) for each, kept in zip(three, masks, strict=True)]
        parts.append(torch.stack([size(each) for size in (norm, largest_of) for each in three]))
    figures = torch.stack(parts)
    return norm(figures[:, :3], dim=0).tolist(), figures[:, 3:].amax(0).tolist()


def _finite(ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    return ref.isfinite() & eager.isfinite()


def _only_ours(ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Where eager's answer is NaN by the way it is computed, such as infinity minus infinity, and by the
    formula a number."""
    return ref.isfinite() & eager.isnan()


def difference(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """The absolute error in float64; 0 where the answer is not finite, or as eager's is not."""
    compared = _finite(ref, eager) | (_only_ours(ref, eager) & out.isfinite())
    return (out.double() - ref.double()).abs_().where(compared, 0.0)


def nearest(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """The smaller of the differences from float64's answer and from eager's."""
    return difference(out, ref, eager).minimum(difference(out, eager, eager))


def broken(
    out: torch.Tensor,
    ref: torch.Tensor,
    eager: torch.Tensor,
    *,
    products: bool = False,
) -> torch.Tensor:
    """Where `out` is not finite but the answer is; where the answer is infinite and `out` differs; and where
    the answer is NaN, in float64 too, and `out` is finite."""
    import torch

    expected = torch.where(eager.isfinite(), ref, eager.to(ref.dtype))
    agrees = (out == expected) | (expected.isnan() & ~out.isfinite()) | products
    agrees |= _only_ours(ref, eager) & out.isfinite()  # `difference` says how well
    return torch.where(_finite(ref, eager), ~out.isfinite(), ~agrees)


def unequal(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Where an output of integers or booleans is not eager's."""
    import torch

    raw = torch.uint8 if out.dtype is torch.bool else out.dtype  # poison reads as True, but is not 1
    return out.view(raw) != eager.view(raw)


def index_in(place: int, shape: Sequence[int]) -> list[int]:
    """The index of the element at this place of the flattened tensor. `torch.unravel_index` would import
    sympy, which takes half a second of CPU time."""
    found = []
    for size in reversed(shape):
        place, index = divmod(place, size)
        found.append(index)
    return found[::-1]


def first_wrong(
    chunks: list[Chunk],
    wrong: Callable[..., torch.Tensor],
    shape: torch.Size,
) -> tuple[str, int]:
    """A message about the first wrong element ("" if there is none), and the number of wrong elements."""
    counts = [int(wrong(*chunk).sum()) for chunk in chunks]
    count, elements = sum(counts), math.prod(shape)
    if not count:
        return "", 0
    number = next(n for n, each in enumerate(counts) if each)
    place = int(wrong(*chunks[number]).nonzero()[0])
    out, ref, eager = (each[place].item() for each in chunks[number])
    where = index_in(number * CHUNK + place, shape)
    expected = ref if chunks[number][0].is_floating_point() else eager
    return (
        f"{count} of {elements} elements differ ({count / elements:.2%}), the first at {where}: "
        f"{out:.6g} instead of {expected:.6g}",
        count,
    )
