"""How far the right answer moves when the inputs are rounded: a kernel's own rounding may cost as much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from evaluators.reference.accuracy.comparison import HALF_EPS, NO_SHIFT, Shift
from evaluators.reference.accuracy.differences import CHUNK
from evaluators.reference.accuracy.float64 import FAILURES
from evaluators.reference.accuracy.rounding import rounded
from evaluators.reference.accuracy.sampled_elements import Places, pick_all
from evaluators.reference.containers import map_tensors
from evaluators.reference.running_reference import RunningReference, raise_if_gpu_lost

if TYPE_CHECKING:
    import torch

ROUNDINGS = 2
"""Random roundings per shift: if the two largest values of a softmax are nearly equal, a single one may by
chance move it little."""


def shifts_of(
    reference: RunningReference, inputs: list[Any], exact: list[torch.Tensor], places: Sequence[Places | None]
) -> list[Shift]:
    """How far the right answer moves when the inputs (and with a `precision` the weights) are rounded: the
    largest of ROUNDINGS. `exact` has the right answer's elements at these places. If answers are computed in
    row slices, only some rows are measured."""
    if reference.slices is not None:
        exact, places = reference.slices.part(exact, places)
    return _largest(exact, Shift.between, _moved(reference, inputs, places))


def eager_shifts_of(
    reference: RunningReference, inputs: list[Any], exact: list[torch.Tensor], places: Sequence[Places | None]
) -> list[Shift]:
    """How far eager's answer to the rounded inputs is from the right one, for wide types: eager also rounds
    in between."""
    moved = (pick_all(each, places) for each in _moved_eager(reference, inputs))
    return _largest(exact, Shift.of_eager, moved)


def joined(one: Sequence[Shift], other: Sequence[Shift]) -> list[Shift]:
    """The larger figures of each output."""
    return [shift.at_least(more) for shift, more in zip(one, other, strict=True)]


def _largest(
    exact: list[torch.Tensor],
    distance: Callable[..., Shift],
    moved: Iterator[list[torch.Tensor]],
) -> list[Shift]:
    shifts = [NO_SHIFT for _ in exact]
    for outputs in moved:
        shifts = joined(shifts, [distance(*pair) for pair in zip(outputs, exact, strict=True)])
        del outputs
    return shifts


def _moved(
    reference: RunningReference, inputs: list[Any], places: Sequence[Places | None]
) -> Iterator[list[torch.Tensor]]:
    """The right answers to rounded inputs; eager's if there are none in float64."""
    if reference.draws_numbers:
        return
    for _ in range(1 if reference.rule.precision else ROUNDINGS):
        if not reference.is_exact:
            yield pick_all(reference.run(_rounded_in_type(reference, inputs)), places)
            continue
        with _rounded_weights(reference):
            if (moved := reference.run_exact(inputs, places, partial(_rounded_inputs, reference))) is None:
                return
            yield moved
        del moved


def _moved_eager(reference: RunningReference, inputs: list[Any]) -> Iterator[list[torch.Tensor]]:
    """Eager's answers to rounded inputs, if they are needed."""
    rule = reference.rule
    if reference.draws_numbers or not reference.is_exact or rule.precision or not _is_wide(rule.dtype):
        return
    for _ in range(ROUNDINGS):
        try:
            yield reference.run(_rounded_in_type(reference, inputs))
        except FAILURES as error:  # some references reject a value that was rounded up
            raise_if_gpu_lost(error)
            return


def _is_wide(dtype: str) -> bool:
    import torch

    return torch.finfo(getattr(torch, dtype)).eps <= HALF_EPS


@contextmanager
def _rounded_weights(reference: RunningReference) -> Iterator[None]:
    """A context in which the float64 weights are rounded to the precision that the rule allows, if any."""
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


def _rounded_inputs(reference: RunningReference, inputs: list[Any]) -> list[Any]:
    return list(map_tensors(partial(_rounded_input, reference), inputs))


def _rounded_input(reference: RunningReference, tensor: torch.Tensor) -> Any:
    return within_range(reference, rounded(tensor, reference.rule.precision, reference.rule.dtype), tensor)


def within_range(reference: RunningReference, changed: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The changed input, clamped to the tensor's own range if the reference must not leave it."""
    bounded = reference.keep_range and tensor.is_floating_point() and tensor.numel()
    return changed.clamp(*tensor.aminmax()) if bounded else changed


def _rounded_in_type(reference: RunningReference, inputs: list[Any]) -> list[Any]:
    """The rounded inputs in their own types. Large ones are rounded in parts, because rounding takes several
    times their memory."""
    import torch

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() <= CHUNK or not tensor.dim():
            return cast(torch.Tensor, _rounded_input(reference, tensor)).to(tensor.dtype)
        whole = torch.empty_like(tensor)
        rows = max(1, len(tensor) * CHUNK // tensor.numel())
        for part, into in zip(torch.split(tensor, rows), torch.split(whole, rows), strict=True):
            into.copy_(_rounded_input(reference, part))
        return whole

    return list(map_tensors(narrow, inputs))
