"""Inputs that agree with an earlier call's in all but two elements, or in all but some dozens: a mean over
many rows hardly shows two.

A kernel that keeps results recognises inputs by a fingerprint: some elements, or a sum. It returns the answer
to the earlier call if the elements that differ are not among those, or if they have only changed places.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluators.reference.accuracy.comparison import ELEMENT, HALF_EPS, Shift
from evaluators.reference.accuracy.differences import as_pairs, chunks_of, largest_of
from evaluators.reference.answer import ReferenceAnswer
from evaluators.reference.containers import replaced, tensors_in
from evaluators.reference.inputs.input_distributions import Distribution
from evaluators.reference.inputs.strided_layouts import clone

if TYPE_CHECKING:
    import torch

TRIED = 64
"""Random elements that may change. The smallest and the largest are exchanged, so that the outputs show it,
or all become the largest."""
MOST_PAIRED = 6
"""Repeats for tensors that change twice each."""
END = 64
"""Elements at either end of a long tensor that stay as they are: in a sorted one, the smallest and the
largest are there."""
VISIBLE, STALE = 4.0, 0.5
"""A change of the answer counts if its norm is at least VISIBLE times the largest error that a right output
may have in one element. An output that is at least STALE of the way back to the earlier answer is out of
date."""
FLAT = 1e-2
"""The largest right error under a flat tolerance, as a share of the answer's largest element."""


def near_repeats(
    inputs: list[Any], count: int, distributions: Mapping[str, Distribution]
) -> Iterator[list[Any]]:
    """The inputs `count` times, or twice for each of up to three tensors if that is more, each time with
    some elements of one tensor changed. The tensors take turns, twice each: a kernel that notices a change
    of one may miss that of another only if two calls in a row differ in that one. The changes are in
    different parts. New values come from the same tensor. Integers and booleans change only if the reference
    takes them in any order, by the `distributions` that it can judge on."""
    tensors = tensors_in(inputs)
    able = [number for number, each in enumerate(tensors) if _may_change(number, each, distributions)]
    secrets.SystemRandom().shuffle(able)
    count = max(count, min(2 * len(able), MOST_PAIRED))
    start = secrets.randbelow(count)
    for turn in range(count if able else 0):
        number = able[turn // 2 % len(able)]
        places = _places(tensors[number].numel(), part=(start + turn) % count, parts=count)
        changed = clone(tensors[number].detach())
        _change(changed, places, swap=turn % 2 == 0)
        yield list(replaced(inputs, [*tensors[:number], changed, *tensors[number + 1 :]]))


def _may_change(number: int, tensor: torch.Tensor, distributions: Mapping[str, Distribution]) -> bool:
    if tensor.numel() < 2:
        return False
    if tensor.is_floating_point() or tensor.is_complex():
        return True
    found = distributions.get("true at random" if str(tensor.dtype) == "torch.bool" else "extreme indices")
    return found is not None and (found.only is None or number in found.only)


def _places(size: int, *, part: int, parts: int) -> list[int]:
    """Random elements in one of the parts of a flattened tensor, but for its ends if it is long. Most have
    odd numbers: samples are usually taken at the ends, or at multiples of a power of two."""
    end = END if size >= 16 * END else 0
    length = max((size - 2 * end) // parts, 2)
    first = min(end + part * length, size - length)
    chosen = {first + secrets.randbelow(length) for _ in range(TRIED)}
    return sorted({min(each | 1, size - 1) for each in chosen})


def _change(tensor: torch.Tensor, places: list[int], *, swap: bool) -> None:
    """Exchanges the smallest and the largest of these elements, so that sums stay as they are, or copies the
    largest to all places. If all are equal, a boolean is inverted."""
    import torch

    flat = torch.tensor(places, device=tensor.device)
    index: list[torch.Tensor] = []
    for size in reversed(tensor.shape):
        index.insert(0, flat % size)
        flat = flat // size
    values = tensor[tuple(index)]
    order = as_pairs(values).reshape(len(places), -1)[:, 0].double().nan_to_num()
    low, high = int(order.argmin()), int(order.argmax())
    at = [tuple(int(each[number]) for each in index) for number in (low, high)]
    if order[low] == order[high] and tensor.dtype is torch.bool:
        tensor[at[0]] = ~values[low]
    elif swap:
        tensor[at[0]], tensor[at[1]] = values[high], values[low]
    else:
        tensor[tuple(index)] = values[high]


def is_stale(
    outputs: Sequence[torch.Tensor], answer: Sequence[torch.Tensor], before: ReferenceAnswer, *, flat: bool
) -> bool:
    """Whether an output leans from eager's `answer` towards the answer `before`, to inputs that differ in a
    few elements. The error is projected on the difference of the answers, so that the size of the output does
    not matter. False where the answers hardly differ. `flat`: whether the tolerance is flat."""
    return any(
        _is_stale(out, new, old, _right_error(old, shift, flat=flat))
        for out, new, old, shift in zip(outputs, answer, before.eager, before.shifts, strict=True)
    )


def _right_error(answer: torch.Tensor, shift: Shift, *, flat: bool) -> float:
    """The largest error that a right output may have in one element."""
    import torch

    if not (answer.is_floating_point() or answer.is_complex()) or not answer.numel():
        return 0.0
    pairs = as_pairs(answer)
    largest = float(largest_of(pairs.where(pairs.isfinite(), 0.0)))
    if flat:
        return FLAT * largest
    eps = torch.finfo(pairs.dtype).eps
    factors = ELEMENT["half" if eps > HALF_EPS else "wide"]
    return factors.eager * shift.eager_largest + factors.ulps * eps * largest + factors.shift * shift.largest


def _is_stale(output: torch.Tensor, answer: torch.Tensor, before: torch.Tensor, error: float) -> bool:
    import torch

    along, whole = 0.0, 0.0
    for chunk in chunks_of(*(as_pairs(each) for each in (output, answer, before))):
        out, new, old = (each.double() for each in chunk)
        finite = out.isfinite() & new.isfinite() & old.isfinite()
        way = torch.where(finite, old - new, 0.0)
        along += float(((out - new).where(finite, 0.0) * way).sum())
        whole += float(way.square().sum())
    return whole > 0 and whole >= (VISIBLE * error) ** 2 and along > STALE * whole
