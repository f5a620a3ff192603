"""Elements where the right answer jumps: `tanh(x @ w)` of huge numbers is -1 or 1, and if the terms of the
sum cancel, their order decides which. A right kernel may return either there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluators.reference.accuracy.differences import chunks_of
from evaluators.reference.accuracy.rounding import rounded
from evaluators.reference.accuracy.shifts import within_range
from evaluators.reference.containers import map_tensors
from evaluators.reference.running_reference import RunningReference

if TYPE_CHECKING:
    import torch

SHARE = 1e-5
"""The share of an output's elements that may be at a jump, but at least one row of a matrix: if two attention
scores are nearly equal, a rounding moves all elements of a row."""
DRAWS = 12
"""Draws of changed inputs: each moves an element at a jump to the other side about one time in three."""
REACH = 16
"""The number of roundings by which inputs are changed: each number individually, and all numbers along a
dimension together, because the partial sums of a product are larger and are rounded, too."""


def largest_errors(outputs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The places, in the flattened outputs, of the few elements furthest from the right answer; none for
    integers."""
    return [_furthest(*pair) for pair in zip(outputs, exact, strict=True)]


def with_elements(
    outputs: Sequence[torch.Tensor], of: Sequence[torch.Tensor], places: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Copies of the outputs with the elements at these places taken from `of`."""
    found = []
    for out, other, at in zip(outputs, of, places, strict=True):
        changed = out.flatten().clone()
        changed[at] = other.flatten()[at].to(out.dtype)
        found.append(changed.reshape(out.shape))
    return found


def at_jumps(
    reference: RunningReference,
    inputs: list[Any],
    outputs: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    places: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Those of the places where the output lies within the range of right answers to inputs that differ by a
    few roundings, including `exact`, the answer to `inputs`. No places if nothing runs in float64."""
    values = [each.reshape(-1)[at].double() for each, at in zip(exact, places, strict=True)]
    lowest, highest = list(values), list(values)
    for _ in range(DRAWS):
        moved = reference.run_exact(list(map_tensors(partial(_changed, reference), inputs)))
        if moved is None:
            return [at[:0] for at in places]
        for number, (each, at) in enumerate(zip(moved, places, strict=True)):
            value = each.reshape(-1)[at].double()
            lowest[number] = lowest[number].minimum(value)
            highest[number] = highest[number].maximum(value)
        del moved
    found = []
    for out, at, low, high in zip(outputs, places, lowest, highest, strict=True):
        value = out.reshape(-1)[at].double()
        margin = REACH * _eps(out) * (high - low)
        found.append(at[(value >= low - margin) & (value <= high + margin) & (high > low)])
    return found


def _furthest(out: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    import torch

    if not out.is_floating_point() or not out.numel():
        return torch.empty(0, dtype=torch.int64, device=out.device)
    count = max(out.shape[-1] if out.dim() > 1 else 1, int(SHARE * out.numel()))
    errors = torch.empty(0, dtype=torch.float64, device=out.device)
    places = torch.empty(0, dtype=torch.int64, device=out.device)
    start = 0
    for one, other in chunks_of(out, exact):
        error = (one.double() - other.double()).abs_().nan_to_num_(torch.inf)
        largest = error.topk(min(count, len(error)))
        errors = torch.cat([errors, largest.values])
        places = torch.cat([places, largest.indices + start])
        errors, best = errors.topk(min(count, len(errors)))
        places = places[best]
        start += len(error)
    return places


def _changed(reference: RunningReference, tensor: torch.Tensor) -> Any:
    """The tensor in float64, each number changed by up to REACH roundings, and all numbers along a dimension
    by as many roundings of float32 (or of a wider type): the error of a sum in that type is relative to the
    whole sum, not to its terms."""
    import torch

    if not tensor.is_floating_point():
        return tensor
    wide = tensor.double()
    step = rounded(tensor, reference.rule.precision, reference.rule.dtype).double().sub_(wide)
    found = step.mul_(torch.empty_like(step).uniform_(-REACH, REACH)).add_(wide)
    reach = REACH * min(_eps(tensor), torch.finfo(torch.float32).eps) / 2
    for axis in (axis for axis, size in enumerate(tensor.shape) if size > 1):
        found.mul_(torch.empty_like(found.narrow(axis, 0, 1)).uniform_(1 - reach, 1 + reach))
    return within_range(reference, found, tensor)


def _eps(tensor: torch.Tensor) -> float:
    import torch

    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
