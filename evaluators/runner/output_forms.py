"""Whether a candidate's outputs have the same form as the reference's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluators.reference.containers import WrongForm, tensors_like
from evaluators.reference.inputs.strided_layouts import is_same
from evaluators.runner.failures import WrongOutput

if TYPE_CHECKING:
    import torch


def outputs_of(output: Any, form: Any) -> list[torch.Tensor]:
    """The tensors of an output. Raises WrongOutput unless it has the structure of the reference's output."""
    try:
        return tensors_like(output, form)
    except WrongForm as error:
        raise WrongOutput(str(error)) from error


def laid_out(tensors: list[torch.Tensor], places: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs in the reference's layout. Raises WrongOutput if their form differs from the
    reference's."""
    import torch

    found = []
    for number, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
        if reason := _other_form(tensor, place):
            raise WrongOutput(f"output {number} {reason}")
        if tensor.stride() != place.stride() or tensor.is_neg() or tensor.is_conj():
            tensor = torch.empty_like(place).copy_(tensor)  # changing the layout is part of the kernel's work
        found.append(tensor)
    return found


def tables_in(output: Any) -> list[torch.Tensor]:
    """The two-dimensional int64 tensors that a probe has returned, the last one first: one of them may hold
    timestamps."""
    import torch

    values = output.values() if isinstance(output, dict) else output
    found = list(values) if isinstance(output, list | tuple | dict) else [output]
    tensors = [each for each in reversed(found) if isinstance(each, torch.Tensor)]
    return [each for each in tensors if each.dtype == torch.int64 and each.dim() == 2]


def require_returned(
    tensors: list[torch.Tensor], inputs: list[torch.Tensor], returned: list[list[int]]
) -> None:
    """Raises WrongOutput if an output is not the input that the reference writes to and returns."""
    for number, given in returned:
        if not is_same(tensors[number], inputs[given]):
            which = f"input {given}, which the reference writes to and returns"
            raise WrongOutput(f"output {number} is not {which}")


def _other_form(tensor: torch.Tensor, place: torch.Tensor) -> str:
    """How an output's form differs from the reference's; "" if only its elements may."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}, not a plain tensor"
    if tensor.shape != place.shape or tensor.dtype != place.dtype:
        ours, theirs = (f"{tuple(each.shape)} {each.dtype}" for each in (tensor, place))
        return f"is {ours}; the reference's is {theirs}"
    for what in ("device", "layout"):
        if getattr(tensor, what) != getattr(place, what):
            return f"has {what} {getattr(tensor, what)}; the reference's is {getattr(place, what)}"
    return ""
