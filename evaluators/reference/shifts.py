"""How far a right answer moves by a rounding of the inputs: so much a kernel's rounding may cost, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluators.reference.comparison import HALF_EPS, NO_SHIFT, Shift
from evaluators.reference.containers import map_tensors, replaced, tensors_in
from evaluators.reference.float64 import FAILURES
from evaluators.reference.rounding import rounded
from evaluators.reference.running_reference import RunningReference, raise_if_lost

if TYPE_CHECKING:
    import torch

ROUNDINGS = 2
"""In which a shift is measured: where a softmax has two largest values that are nearly equal, one may by
chance move it little."""


def shifts_of(reference: RunningReference, inputs: list[Any], exact: list[torch.Tensor]) -> list[Shift]:
    """How far the right answer moves when the inputs, and with a `precision` the weights, are rounded,
    and in wide types how far eager's lies from it then, which rounds in between, too. The largest of
    some roundings count."""
    shifts = [NO_SHIFT for _ in exact]
    for distance, outputs in _moved(reference, inputs):
        found = [distance(*pair) for pair in zip(outputs, exact, strict=True)]
        del outputs
        shifts = [shift.at_least(other) for shift, other in zip(shifts, found, strict=True)]
    return shifts


def _moved(
    reference: RunningReference, inputs: list[Any]
) -> Iterator[tuple[Callable[..., Shift], list[torch.Tensor]]]:
    """Answers to inputs that are rounded, each with what measures their distance."""
    if reference.draws_numbers:
        return
    for _ in range(1 if reference.rule.precision else ROUNDINGS):
        given = map_tensors(partial(_rounded_input, reference), inputs)
        if not reference.is_exact:
            yield Shift.between, reference.run(_in_types_of(inputs, given))
            continue
        with _rounded_weights(reference):
            if (moved := reference.run_exact(given)) is None:
                return
            yield Shift.between, moved
        del moved
        if _is_wide(reference.rule.dtype) and not reference.rule.precision:
            try:
                yield Shift.of_eager, reference.run(_in_types_of(inputs, given))
            except FAILURES as error:  # some references take no value that is rounded up
                raise_if_lost(error)
                return


def _is_wide(dtype: str) -> bool:
    import torch

    return torch.finfo(getattr(torch, dtype)).eps <= HALF_EPS


@contextmanager
def _rounded_weights(reference: RunningReference) -> Iterator[None]:
    """The weights in float64 rounded to the precision that the rule allows, where it does."""
    import torch

    if reference.double is None or not reference.rule.precision:
        yield
        return
    parameters = list(reference.double.module.parameters())
    with torch.no_grad():
        before = [each.clone() for each in parameters]
        for each in parameters:
            each.copy_(rounded(each, reference.rule.precision, reference.rule.dtype))
        try:
            yield
        finally:
            for each, was in zip(parameters, before, strict=True):
                each.copy_(was)


def _rounded_input(reference: RunningReference, tensor: torch.Tensor) -> Any:
    """Within the tensor's own range where the reference must not leave it."""
    found = rounded(tensor, reference.rule.precision, reference.rule.dtype)
    bounded = reference.keep_range and tensor.is_floating_point() and tensor.numel()
    return found.clamp(*tensor.aminmax()) if bounded else found


def _in_types_of(inputs: list[Any], rounded: list[Any]) -> list[Any]:
    """The rounded inputs in the types of those that they were made of."""
    pairs = zip(tensors_in(rounded), tensors_in(inputs), strict=True)
    return list(replaced(inputs, [new.to(old.dtype) for new, old in pairs]))
