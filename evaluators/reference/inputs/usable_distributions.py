"""Finds the input distributions that distinguish right answers to a reference from wrong ones.

A distribution is usable if eager PyTorch itself is right on it and no rounding decides what the answer is.
The others are listed in `ReferenceModel.untried`, with the reason.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluators.records.opening import OpeningStep
from evaluators.reference.accuracy.differences import as_pairs, largest_of, rms_of
from evaluators.reference.answer import ReferenceAnswer
from evaluators.reference.containers import map_tensors, tensors_in
from evaluators.reference.inputs.input_distributions import (
    DISTRIBUTIONS,
    EXTREME_INTEGERS,
    LARGEST,
    MILDER,
    OWN,
    SMALLEST,
    Distribution,
    far_scales,
)
from evaluators.reference.inputs.special_integers import IntegerUses, integer_uses
from evaluators.reference.inputs.strided_layouts import clone
from evaluators.reference.reference_model import ReferenceModel
from evaluators.reference.running_reference import REJECTIONS, raise_if_gpu_lost

if TYPE_CHECKING:
    import torch

LONGEST_S = 120.0
"""Process time for trying distributions, in seconds; the ones left then are not tried on kernels either."""
CHAOTIC = 5e-4
"""Largest shift relative to the outputs, unless a hundred times the shift on the problem's own inputs is
more. If a rounding of the inputs moves the answer further, the summation order decides what it is."""
NEAR_OVERFLOW = 0.02
"""Relative distance from the largest finite number within which an answer may or may not be infinite."""
RIGHT = 64.0
"""Eager is right on a distribution if its error is at most this multiple of its error on the problem's
inputs."""
ROUNDED_WELL, ROUNDED = 4.0, 0.01
"""Largest shift with lower precision: a multiple of the shift on the problem's own inputs, or a share of the
outputs. Beyond it, the precision that the problem allows is too low for the distribution."""
FAR_SCALES = 2
"""Scales used at either end of the type's range: the second leaves room for a kernel's intermediate
values."""
SOFTMAX_FAR = 14
"""Exponent of the largest scale if products go into exponentials. Attention kernels, including
FlashAttention's and Triton's tutorial, compute exp2(score * scale - most) with one fused multiply-add, where
`most` is the largest of the same products, but rounded. With scores of 2^80 the rounding error alone makes it
infinite."""
FOUR_BITS = 15
"""The range of integers that may have been made to be packed."""
RANGE_DRAWS = 16
"""Draws in which a distribution must stay within the range of the inputs."""
OUT_OF_RANGE = "the reference fails on the device for values outside the range of its own inputs"


def open_distributions(reference: ReferenceModel) -> None:
    """Finds the usable distributions and stores the reference's answers on them. Random outputs are compared
    only on the problem's own inputs."""
    if reference.random_checks is not None:
        reference.untried["other distributions"] = "outputs are random"
        return
    with reference.steps.step(OpeningStep.DISTRIBUTIONS):
        _open_distributions(reference)


def _open_distributions(reference: ReferenceModel) -> None:
    deadline = time.process_time() + LONGEST_S
    _choose_signs(reference)
    reference.change_weights(reference.full_change(), alike=True)
    try:
        own = _Own.of(reference.compute_answer(OWN, secrets.randbits(62)))
        for candidates in _candidates(reference):
            right, why = 0, ""
            for each in candidates:
                if time.process_time() > deadline:
                    why = "the reference takes too long"
                    break
                why = _try_out(each, own, reference)
                right += not why
                if right == (FAR_SCALES if each.name in (LARGEST, SMALLEST) else 1):
                    break
            if not right:
                reference.untried[candidates[0].name] = why
    finally:
        reference.restore_weights()


def _choose_signs(reference: ReferenceModel) -> None:
    """Sets whether changed weights may have other signs: only if the outputs stay finite."""
    if not reference.has_weights:
        return
    for reference.signed_weights in (True, False):
        reference.change_weights(reference.full_change(), alike=True)
        try:
            outputs = reference.run(reference.sample)
            if all(bool(each.isfinite().all()) for each in outputs if each.is_floating_point()):
                return
        finally:
            reference.restore_weights()


def _candidates(reference: ReferenceModel) -> Iterator[list[Distribution]]:
    """Each distribution, with a milder one to try if the reference is not right there; then for either end of
    the range all scales, the furthest first."""
    tensors = tensors_in(reference.sample)
    given = map_tensors(clone, reference.sample) if reference.changed_inputs else reference.sample
    uses = IntegerUses() if reference.keeps_integers else integer_uses(reference.eager, given)
    for each in (*DISTRIBUTIONS, *uses.distributions()):
        if each.name == EXTREME_INTEGERS:
            numbers = frozenset(number for number in uses.calculated if _are_numbers(tensors[number]))
            if not numbers:
                continue
            each = replace(each, only=numbers)
        elif each.integer and uses.offsets and each.by_number is None:
            # Offsets in another order end a GPU's context. EMPTY_BAGS changes them.
            each = replace(each, only=frozenset(range(len(tensors))) - uses.offsets)
        changed = (t for n, t in enumerate(tensors) if each.only is None or n in each.only)
        if not (each.by_number or any(map(each.changes, changed))):
            continue
        if each.integer and reference.keeps_integers:
            reference.untried[each.name] = "the reference requires its own integers"
            continue
        if each.nonfinite:
            if why := _no_infinities(tensors, reference):
                reference.untried[each.name] = why
                continue
            if each.masks and reference.has_products:
                if not (masks := _masks(each, tensors, reference)):
                    reference.untried[each.name] = "no input is a mask: infinities would enter products"
                    continue
                each = replace(each, only=masks)
        yield [each, *([MILDER[each.name]] if each.name in MILDER else [])]
    if any(each.is_floating_point() or each.is_complex() for each in tensors):
        yield far_scales(LARGEST, SOFTMAX_FAR if reference.has_softmax else None)
        yield far_scales(SMALLEST)


def _are_numbers(integers: torch.Tensor) -> bool:
    """Whether the values reach further than those of a mask or of four bits, on which a kernel may rely."""
    low, high = integers.aminmax()
    return int(high) - int(low) > FOUR_BITS


def _no_infinities(tensors: Sequence[torch.Tensor], reference: ReferenceModel) -> str:
    """Why infinities are not tried; "" if they are."""
    if reference.keep_range:
        return OUT_OF_RANGE
    if any(each.is_complex() for each in (*tensors, *reference.outputs)):
        return "complex products of infinities can be written in several ways"
    return ""


def _masks(
    masked: Distribution, tensors: Sequence[torch.Tensor], reference: ReferenceModel
) -> frozenset[int]:
    """The numbers of the input tensors in which minus infinity acts as a mask: the answer stays finite, which
    it does not if the tensor is a factor of a product."""

    def is_mask(number: int) -> bool:
        inputs = replace(masked, only=frozenset({number})).applied(reference.sample)
        try:
            outputs = reference.run(inputs)
        except REJECTIONS as error:
            raise_if_gpu_lost(error)
            return False
        return all(bool(each.isfinite().all()) for each in outputs if each.is_floating_point())

    return frozenset(
        number for number, tensor in enumerate(tensors) if masked.changes(tensor) and is_mask(number)
    )


@dataclass(frozen=True)
class _Own:
    """The answer to the problem's own inputs, with the rms of eager's error and of the answer per output."""

    answer: ReferenceAnswer
    figures: list[tuple[float, float]]

    @classmethod
    def of(cls, answer: ReferenceAnswer) -> _Own:
        return cls(answer, [rms_of(*pair) for pair in zip(answer.eager, answer.exact, strict=True)])


def _try_out(distribution: Distribution, own: _Own, reference: ReferenceModel) -> str:
    """Accepts a distribution and returns "", or returns why not."""
    seed = secrets.randbits(62)
    if reference.keep_range and not _keeps_range(distribution, reference.sample):
        return OUT_OF_RANGE
    try:
        answer = reference.compute_answer(distribution, seed)
    except REJECTIONS as error:
        raise_if_gpu_lost(error)
        return f"the reference raises {type(error).__name__}"
    if reference.has_products and any(map(_overflows, answer.eager, answer.exact)):
        return "sums of products are too large for the type there"
    for number, eager in enumerate(answer.eager):
        if eager.shape != own.answer.eager[number].shape:
            return "the outputs have another shape there"
        if not _is_right(answer, number, own, lower=bool(reference.rule.precision)):
            return "eager PyTorch is not right there"
    reference.accept(distribution, seed, answer)
    return ""


def _keeps_range(distribution: Distribution, sample: list[Any]) -> bool:
    """Whether all values stay within the range of the original tensor, in several draws, because one
    distribution has random scales."""
    return all(
        bool((new.amin() >= old.amin()) & (new.amax() <= old.amax()))
        for _ in range(RANGE_DRAWS)
        for old, new in zip(
            map(as_pairs, tensors_in(sample)),
            map(as_pairs, tensors_in(distribution.applied(sample))),
            strict=True,
        )
        if old.numel()
    )


def _is_right(answer: ReferenceAnswer, number: int, own: _Own, *, lower: bool) -> bool:
    """Whether eager's output of this number is accurate enough to judge by. `lower`: whether the problem
    allows lower precision."""
    import torch

    eager, exact, shift = answer.eager[number], answer.exact[number], answer.shifts[number]
    if not eager.numel() or not (eager.is_floating_point() or eager.is_complex()):
        return True
    error, scale = rms_of(eager, exact)
    own_error, own_scale = own.figures[number]
    own_shift = own.answer.shifts[number].rms / max(own_scale, 1e-300)
    relative = RIGHT * own_error / max(own_scale, 1e-300) + 64 * torch.finfo(eager.dtype).eps
    if not lower:
        relative += 16 * own_shift + 16 * shift.rms / max(scale, 1e-300)
    if error > relative * scale or not _same_finite(eager, exact):
        return False
    most = max(ROUNDED_WELL * own_shift, ROUNDED) if lower else max(100 * own_shift, CHAOTIC)
    return shift.rms <= most * scale


def _overflows(eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a finite answer is too large for eager's dtype. If a sum of products is, a partial sum of
    another element may be as well, and a kernel may round partial sums."""
    if not eager.is_floating_point() or _is_far_below(exact, eager.dtype):
        return False
    return bool((exact.isfinite() & ~exact.to(eager.dtype).isfinite()).any())


def _is_far_below(exact: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether all elements are finite and far below the largest number of the type."""
    import torch

    return not exact.numel() or float(largest_of(exact)) <= (1 - NEAR_OVERFLOW) * torch.finfo(dtype).max


def _same_finite(eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the same elements are infinite (with the same signs) or NaN once the exact answer is rounded to
    eager's dtype, and no element is so close to the largest finite number that a rounding decides."""
    import torch

    eager, exact = as_pairs(eager), as_pairs(exact)
    if _is_far_below(exact, eager.dtype):  # all are finite
        return bool(largest_of(eager).isfinite())
    most = torch.finfo(eager.dtype).max
    rounded = exact.to(eager.dtype)
    same = (eager == rounded) | (eager.isnan() & rounded.isnan())
    near = (exact.abs() > (1 - NEAR_OVERFLOW) * most) & (exact.abs() < (1 + NEAR_OVERFLOW) * most)
    return bool((eager.isfinite() & rounded.isfinite() & ~near | ~rounded.isfinite() & same & ~near).all())
