"""Finds references that cannot judge, because an answer that skips all or part of the work would pass.

This runs when a problem is opened and needs only the reference. A lazy answer is a finding only if it passes
on every input distribution.
"""

from __future__ import annotations

import itertools
import logging
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluators.reference.accuracy.comparison import OutputComparison
from evaluators.reference.accuracy.differences import about_equal
from evaluators.reference.accuracy.sampled_elements import pick_all
from evaluators.reference.answer import Draw, ReferenceAnswer
from evaluators.reference.containers import plain_values, replaced, tensors_in
from evaluators.reference.inputs.usable_distributions import open_distributions
from evaluators.reference.random_outputs import Evidence, Hook
from evaluators.reference.reference_model import ReferenceModel
from evaluators.reference.running_reference import REJECTIONS

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

SAMPLE = 2**16
"""Elements of an output that are compared first."""
ROUNDING = 1e-5
"""Answers that differ by less than this, normwise, differ only by rounding."""
ROUNDED_ANEW = 0.01
"""The share of half-precision elements that may be rounded in another way: for a tensor at another place, a
library may choose another kernel."""
MOST_BYTES = 2**31
"""Larger inputs are not replaced by halves: that takes several times their memory."""
RANDOM_CALLS = 6
"""Calls on the same inputs, for random outputs."""
MOST_AXES = 4
"""Axes of an input along which half of it is tried in place of the whole."""

Outputs = list["torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Lazy:
    """An answer that skips some of the work, as a kernel might.

    `outputs` takes inputs, the name of their distribution and the right outputs; it returns None where the
    answer does not apply. `is_right` takes such outputs for the problem's own inputs and the right ones, and
    returns whether they agree, so that nothing was skipped."""

    says: str
    outputs: Callable[[list[Any], str, Outputs], Outputs | None]
    is_right: Callable[[Outputs, Outputs], bool] = lambda outputs, right: False


def examine(reference: ReferenceModel) -> list[str]:
    """The reasons why a reference cannot judge under its tolerance, one line each; empty for a sound one.

    Opens its distributions. Inputs that are equal in every draw and under every distribution are named in
    `reference.untried`, because a kernel may ignore them. Raises what the reference raises."""
    import torch

    with torch.no_grad():
        open_distributions(reference)
        if reference.random_checks is not None:
            return list(_lazy_draws(reference, reference.random_checks))
        seeds = secrets.randbits(62), secrets.randbits(62)
        inputs, other = (reference.draw(seed) for seed in seeds)
        answer = reference.answer(Draw(seed=seeds[0]), given=inputs, spot=reference.slices is not None)
        right = answer.eager if reference.slices is None else reference.run(inputs, seeds[0])
        if not filled_outputs(right):
            return ["there are no elements in its outputs to judge"]
        elsewhere = reference.run(other, seeds[1])
        if found := _found_of_outputs(inputs, right, answer, elsewhere, reference):
            return found
        del elsewhere
        for number, (one, two) in enumerate(zip(tensors_in(inputs), tensors_in(other), strict=True)):
            if one.shape == two.shape:
                constant = torch.equal(one, two)
                lazy = without_input(number, other, seeds, reference, constant=constant)
                why = _passes(lazy, inputs, right, answer, reference)
                if why and constant:
                    says = "equal in every draw, and no other values could be tried: a kernel may ignore it"
                    reference.untried[f"input {number}"] = says
                elif why and number in reference.changed_inputs:
                    reference.untried[f"input {number}"] = "it is overwritten without being read"
                elif why and reference.leaves_unread and _is_unread(lazy, inputs, right):
                    reference.untried[f"input {number}"] = "it is not read: a kernel may ignore it"
                elif why:
                    found.append(f"the outputs hardly depend on input {number}: {why}")
        if values := plain_values(reference.template):
            says = f"equal in every draw: {', '.join(map(repr, values))}; a kernel may rely on that"
            reference.untried["numbers and strings among the inputs"] = says
        size = sum(each.nbytes for each in tensors_in(inputs))
        for lazy in lazy_parts(inputs, reference) if size < MOST_BYTES else ():
            if why := _passes(lazy, inputs, right, answer, reference):
                found.append(why)
    return found


def _found_of_outputs(
    inputs: list[Any], right: Outputs, answer: ReferenceAnswer, elsewhere: Outputs, reference: ReferenceModel
) -> list[str]:
    """One line for each output that a lazy answer can replace. If the reference has LEAVES_UNREAD and other
    outputs, constant outputs and copies of an input are named in `reference.untried` instead: linear
    algebra's `info`, or the total weight of an unweighted loss."""
    judged, found = filled_outputs(right), dict[int, str]()
    for number in judged:
        for lazy in lazy_outputs(number, inputs, elsewhere, reference):
            if why := _passes(lazy, inputs, right, answer, reference):
                found[number] = why if len(right) == 1 else f"{reference.output_name(number)}: {why}"
                break

    def is_idle(number: int) -> bool:
        plain = elsewhere[number], *tensors_in(inputs)
        return any(about_equal(each, right[number], 0.0) for each in plain)

    idle = [number for number in found if reference.leaves_unread and is_idle(number)]
    if len(idle) < len(judged):
        for number in idle:
            says = "constant, or an input, in every draw: a kernel may return that"
            reference.untried[reference.output_name(number)] = says
            del found[number]
    return list(found.values())


def filled_outputs(outputs: Outputs) -> list[int]:
    """The numbers of the outputs that have elements; the others are compared only in shape and type."""
    return [number for number, each in enumerate(outputs) if each.numel()]


def _passes(
    lazy: Lazy, inputs: list[Any], right: Outputs, answer: ReferenceAnswer, reference: ReferenceModel
) -> str:
    """A message with figures if nothing distinguishes a lazy answer from the right one; "" if something
    does. `right` are eager's whole outputs."""
    outputs = lazy.outputs(inputs, "", right)
    if outputs is None or _fails(outputs, answer, reference, own=True):
        return ""
    own = reference.judge(outputs, answer)
    if own.problem or lazy.is_right(outputs, right) or not passes_elsewhere(lazy, reference):
        return ""
    return f"{lazy.says} pass on every distribution {_explained(own, right)}"


def _is_unread(lazy: Lazy, inputs: list[Any], right: Outputs) -> bool:
    """Whether the outputs for another input equal the right ones exactly."""
    outputs = lazy.outputs(inputs, "", right)
    return outputs is not None and all(about_equal(*pair, 0.0) for pair in zip(outputs, right, strict=True))


def _lazy_draws(reference: ReferenceModel, hook: Hook) -> Iterator[str]:
    """Findings for random outputs: zeros pass, or the outputs of another call on the same inputs pass, or
    eager's own fail."""
    import torch

    zeros, again, right = Evidence(hook), Evidence(hook), Evidence(hook)
    while not right.enough:
        again.other_inputs()
        draws = reference.own_draws(RANDOM_CALLS)
        answers = [reference.answer(each) for each in draws]
        first = reference.answer(draws[0]).eager
        for answer in answers:
            inputs = answer.inputs or []
            zeros.add(inputs, [torch.zeros_like(each) for each in answer.eager], answer.eager)
            again.add(inputs, first, answer.eager)
            right.add(inputs, reference.run(inputs), answer.eager)
    if not zeros.comparison().problem:
        yield "zeros pass the statistical tests of its outputs"
    if right.differs and not again.comparison().problem:
        yield "the same outputs in each call pass the statistical tests of its outputs"
    if problem := right.comparison().problem:
        yield f"eager's outputs fail the statistical tests of its outputs: {problem}"


def _fails(outputs: Outputs, answer: ReferenceAnswer, reference: ReferenceModel, *, own: bool) -> bool:
    """Whether a sample of the elements already fails: most wrong answers are wrong everywhere."""
    if any(at is not None for at in answer.places):
        outputs = pick_all(outputs, answer.places)
    few = replace(answer, eager=_some(answer.eager), exact=_some(answer.exact))
    few = replace(few, places=[None] * len(outputs), freedom=[])
    return bool(reference.judge(_some(outputs), few, own=own).problem)


def _some(tensors: Outputs) -> Outputs:
    return [each.flatten()[:: each.numel() // SAMPLE + 1] for each in tensors]


def passes_elsewhere(lazy: Lazy, reference: ReferenceModel) -> bool:
    """Whether it passes on all distributions of finite numbers, with changed weights. A predicate such as
    `isinf` must also pass on the non-finite ones, because detecting those may be all that it computes."""
    is_predicate = all(str(each.dtype) == "torch.bool" for each in reference.outputs)
    reference.change_weights(reference.full_change(), alike=True)
    try:
        for name, distribution in reference.distributions.items():
            if distribution.nonfinite and not is_predicate:  # failing only there does not excuse it
                continue
            seed, answer = reference.answer_on(name, complete=True)
            inputs = reference.draw(seed, name)
            kept_whole = all(at is None for at in answer.places)
            outputs = lazy.outputs(inputs, name, answer.eager if kept_whole else reference.run(inputs, seed))
            if outputs is None or _fails(outputs, answer, reference, own=False):
                return False
            if reference.check_on(outputs, name).problem:
                return False
    finally:
        reference.restore_weights()
    return True


def _explained(found: OutputComparison, right: Outputs) -> str:
    values = right[filled_outputs(right)[0]].double()
    return (
        f"(the largest output is {values.abs().max().item():.3g}, the rms "
        f"{values.square().mean().sqrt().item():.3g}, the normwise difference {found.error:.3g}, eager's own "
        f"{found.eager_error:.3g})"
    )


def lazy_outputs(
    number: int, inputs: list[Any], elsewhere: Outputs, reference: ReferenceModel
) -> Iterator[Lazy]:
    """Lazy answers for one output: zeros, constants, the output for other inputs, an input, and an input
    times and plus weights."""
    import torch

    fixed = elsewhere[number]

    def instead(says: str, make: Callable[[list[Any]], torch.Tensor]) -> Lazy:
        def outputs(given: list[Any], name: str, right: Outputs) -> Outputs | None:
            made = make(given)
            shape, dtype = right[number].shape, right[number].dtype
            if made.shape != shape or (dtype.is_floating_point and not made.is_floating_point()):
                return None
            return [*right[:number], made.to(dtype), *right[number + 1 :]]

        return Lazy(says=says, outputs=outputs)

    def mean_over(*kept: int) -> torch.Tensor:
        over = [d for d in range(fixed.dim()) if d not in {k % fixed.dim() for k in kept}]
        mean = fixed.mean(over, keepdim=True, dtype=torch.float64)
        return mean.to(fixed.dtype).expand_as(fixed)

    yield instead("zeros", lambda given: fixed.new_zeros(fixed.shape))
    if fixed.is_floating_point():
        yield instead("constants (the mean for other inputs)", lambda given: mean_over())
        if fixed.dim() > 2:
            yield instead("constants (one a channel, from other inputs)", lambda given: mean_over(1))
        if fixed.dim() > 1:
            says = "constants (one a place in the last dimension, from other inputs)"
            yield instead(says, lambda given: mean_over(-1))
    yield instead("the outputs for other inputs", lambda given: fixed)
    weights = [each for each in reference.eager.parameters() if each.is_floating_point()]
    for index, tensor in enumerate(tensors_in(inputs)):
        if tensor.shape != fixed.shape:
            continue
        yield instead(f"the elements of input {index}", _affine(index, None, None))
        if tensor.is_floating_point():
            fitting = [each for each in weights if _fits(each, tensor)]
            for factor in fitting:
                yield instead(f"input {index} times a weight", _affine(index, factor, None))
            for factor, offset in itertools.permutations(fitting, 2):
                yield instead(f"input {index} times a weight plus another", _affine(index, factor, offset))


def _affine(
    index: int, factor: torch.Tensor | None, offset: torch.Tensor | None
) -> Callable[[list[Any]], torch.Tensor]:
    def answer(inputs: list[Any]) -> torch.Tensor:
        found = tensors_in(inputs)[index]
        found = found if factor is None else found * factor
        return found if offset is None else found + offset

    return answer


def _fits(weight: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether it is broadcast over the tensor."""
    sizes = zip(reversed(weight.shape), reversed(tensor.shape), strict=False)
    return weight.dim() <= tensor.dim() and all(one in (1, other) for one, other in sizes)


def without_input(
    number: int, other: list[Any], seeds: tuple[int, int], reference: ReferenceModel, *, constant: bool
) -> Lazy:
    """The outputs for other values of one input. `other` are the problem's own inputs of the second seed; an
    input that is `constant` in every draw always takes its values from them."""

    def outputs(inputs: list[Any], name: str, right: Outputs) -> Outputs | None:
        tensors = tensors_in(inputs)
        drawn = other if constant or not name else reference.draw(seeds[1], name)
        tensors[number] = tensors_in(drawn)[number]
        try:
            return reference.run(list(replaced(inputs, tensors)), seeds[0])
        except REJECTIONS as error:
            logger.info("input %d cannot be drawn anew alone: %s", number, error)
            return None

    return Lazy(says=f"the outputs for another input {number}, drawn anew,", outputs=outputs)


def lazy_parts(inputs: list[Any], reference: ReferenceModel) -> Iterator[Lazy]:
    """Answers computed with the second half of an input replaced by the first, along each axis."""
    for index, tensor in enumerate(tensors_in(inputs)):
        for axis in range(min(tensor.dim(), MOST_AXES)):
            if tensor.is_floating_point() and tensor.shape[axis] >= 4:
                yield Lazy(
                    says=f"answers made of the first half of input {index} along axis {axis}",
                    outputs=_half(index, axis, reference),
                    is_right=differ_by_rounding,
                )


def differ_by_rounding(outputs: Outputs, right: Outputs) -> bool:
    """Whether they differ only by rounding, so that nothing depends on the other half."""
    return all(about_equal(*pair, _rounding(pair[1])) for pair in zip(outputs, right, strict=True))


def _rounding(right: torch.Tensor) -> float:
    """The largest normwise difference from it that is rounding."""
    import torch

    eps = torch.finfo(right.dtype).eps if right.is_floating_point() else 0.0
    return max(ROUNDING, eps * math.sqrt(ROUNDED_ANEW))


def _half(
    index: int, axis: int, reference: ReferenceModel
) -> Callable[[list[Any], str, Outputs], Outputs | None]:
    import torch

    def outputs(given: list[Any], name: str, right: Outputs) -> Outputs | None:
        tensors = tensors_in(given)
        whole = tensors[index]
        size = whole.shape[axis]
        first = whole.narrow(axis, 0, size // 2)
        rest = first.narrow(axis, 0, size - 2 * (size // 2))
        tensors[index] = torch.cat([first, first, rest], axis)
        found = reference.run(list(replaced(given, tensors)))
        merged = []
        for made, known in zip(found, right, strict=True):
            if made.shape != known.shape:
                return None
            if made.dim() == whole.dim() and made.shape[axis] == size:  # let the second half be right
                halves = made.narrow(axis, 0, size // 2), known.narrow(axis, size // 2, size - size // 2)
                made = torch.cat(halves, axis)
            merged.append(made)
        return merged

    return outputs
