"""References that cannot judge: an answer that needs no computing, or leaves a part of it out, would pass.

Examined when a problem is opened, on the reference alone. A lazy answer is no finding as long as one of the
input distributions tells it from the right one.
"""

from __future__ import annotations

import itertools
import logging
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

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

SAMPLE = 2**16
"""Elements of an output that are looked at first."""
ROUNDING = 1e-5
"""Normwise: answers that are nearer to one another are the same but for rounding."""
MOST_BYTES = 2**31
"""Of inputs that are changed by halves: that takes several times their memory."""
RANDOM_CALLS = 6
"""On the same inputs, where outputs are random."""
MOST_AXES = 4
"""Of an input, along which a part is tried in the place of the whole."""

Outputs = list["torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Lazy:
    """What a kernel might return that leaves something out. `outputs` takes inputs, the name of their
    distribution and the right outputs, and returns None where it has nothing to say. `is_right`: whether
    such outputs for the problem's own inputs leave nothing out, of which they and the right ones tell."""

    says: str
    outputs: Callable[[list[Any], str, Outputs], Outputs | None]
    is_right: Callable[[Outputs, Outputs], bool] = lambda outputs, right: False


def examine(reference: ReferenceModel) -> list[str]:
    """What makes a reference useless under its tolerance, one line each; empty for a sound one. Opens its
    distributions. Inputs that are equal in every draw and that no distribution changes are named in
    `reference.untried`: a kernel may ignore them. Raises what the reference raises."""
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
                    reference.untried[f"input {number}"] = "it is written to, and what it held is not read"
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
    """Outputs in the place of which something lazy passes, a line each. Those that are constant or a copy of
    an input are named in `reference.untried` instead, where that is allowed and there are other outputs:
    `info` of linear algebra, the total weight of a loss without weights."""
    judged, found = filled_outputs(right), dict[int, str]()
    for number in judged:
        for lazy in lazy_outputs(number, inputs, elsewhere, reference):
            if why := _passes(lazy, inputs, right, answer, reference):
                found[number] = why if len(right) == 1 else f"output {number}: {why}"
                break

    def is_idle(number: int) -> bool:
        plain = elsewhere[number], *tensors_in(inputs)
        return any(about_equal(each, right[number], 0.0) for each in plain)

    idle = [number for number in found if reference.leaves_unread and is_idle(number)]
    if len(idle) < len(judged):
        for number in idle:
            says = "constant, or an input, in every draw: a kernel may return that"
            reference.untried[f"output {number}"] = says
            del found[number]
    return list(found.values())


def filled_outputs(outputs: Outputs) -> list[int]:
    """The numbers of those with elements: the others are compared in shape and type alone."""
    return [number for number, each in enumerate(outputs) if each.numel()]


def _passes(
    lazy: Lazy, inputs: list[Any], right: Outputs, answer: ReferenceAnswer, reference: ReferenceModel
) -> str:
    """Why nothing tells a lazy answer from the right one, with the figures; "" where something does. `right`:
    eager's whole outputs."""
    outputs = lazy.outputs(inputs, "", right)
    if outputs is None or _fails(outputs, answer, reference, own=True):
        return ""
    own = reference.judge(outputs, answer)
    if own.problem or lazy.is_right(outputs, right) or not passes_elsewhere(lazy, reference):
        return ""
    return f"{lazy.says} pass on every distribution {_explained(own, right)}"


def _is_unread(lazy: Lazy, inputs: list[Any], right: Outputs) -> bool:
    """Whether the outputs for another input are the right ones, to the last bit."""
    outputs = lazy.outputs(inputs, "", right)
    return outputs is not None and all(about_equal(*pair, 0.0) for pair in zip(outputs, right, strict=True))


def _lazy_draws(reference: ReferenceModel, hook: Hook) -> Iterator[str]:
    """What random outputs might be and pass: zeros, or those of another call on the same inputs. And eager's
    own, should they fail."""
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
        yield "its outputs are compared by statistical tests, and zeros pass"
    if right.differs and not again.comparison().problem:
        yield "its outputs are compared by statistical tests, and the same in each call pass"
    if problem := right.comparison().problem:
        yield f"its outputs are compared by statistical tests, and eager's fail: {problem}"


def _fails(outputs: Outputs, answer: ReferenceAnswer, reference: ReferenceModel, *, own: bool) -> bool:
    """Whether a part of them is enough to fail them: most wrong answers are wrong everywhere."""
    if any(at is not None for at in answer.places):
        outputs = pick_all(outputs, answer.places)
    few = replace(answer, eager=_some(answer.eager), exact=_some(answer.exact))
    few = replace(few, places=[None] * len(outputs))
    return bool(reference.judge(_some(outputs), few, own=own).problem)


def _some(tensors: Outputs) -> Outputs:
    return [each.flatten()[:: each.numel() // SAMPLE + 1] for each in tensors]


def passes_elsewhere(lazy: Lazy, reference: ReferenceModel) -> bool:
    """Whether it passes on all distributions of finite numbers, with other weights, too. A test (`isinf`) is
    held to the others as well: to tell those may be all that it does."""
    is_test = all(str(each.dtype) == "torch.bool" for each in reference.outputs)
    reference.change_weights(reference.everywhere(), alike=True)
    try:
        for name, distribution in reference.distributions.items():
            if distribution.nonfinite and not is_test:  # what fails only there is as lazy
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
    """In the place of one output: zeros, constants, the output for other inputs, an input, and an input times
    and plus weights."""
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
    """Outputs for other values of one input, which for one that is equal in every draw are its own. `other`:
    the problem's own inputs of the second seed."""

    def outputs(inputs: list[Any], name: str, right: Outputs) -> Outputs | None:
        tensors = tensors_in(inputs)
        drawn = other if constant or not name else reference.draw(seeds[1], name)
        tensors[number] = tensors_in(drawn)[number]
        try:
            return reference.run(list(replaced(inputs, tensors)), seeds[0])
        except (RuntimeError, ValueError, IndexError) as error:
            logger.info("input %d cannot be drawn anew by itself: %s", number, error)
            return None

    return Lazy(says=f"the outputs for another input {number}, drawn anew,", outputs=outputs)


def lazy_parts(inputs: list[Any], reference: ReferenceModel) -> Iterator[Lazy]:
    """Answers made of the first half of an input, along an axis, in the place of the whole: where the outputs
    depend on the other half."""
    for index, tensor in enumerate(tensors_in(inputs)):
        for axis in range(min(tensor.dim(), MOST_AXES)):
            if tensor.is_floating_point() and tensor.shape[axis] >= 4:
                yield Lazy(
                    says=f"answers made of the first half of input {index} along axis {axis}",
                    outputs=_half(index, axis, reference),
                    is_right=_is_rounding,
                )


def _is_rounding(outputs: Outputs, right: Outputs) -> bool:
    """Whether nothing but that tells them apart: nothing depends on the other half."""
    return all(about_equal(*pair, ROUNDING) for pair in zip(outputs, right, strict=True))


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
            if made.dim() == whole.dim() and made.shape[axis] == size:  # the other half of it is right
                halves = made.narrow(axis, 0, size // 2), known.narrow(axis, size // 2, size - size // 2)
                made = torch.cat(halves, axis)
            merged.append(made)
        return merged

    return outputs
