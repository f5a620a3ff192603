"""Whether the outputs of a candidate have the form of the reference's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluators.reference.containers import tensors_of
from evaluators.reference.inputs.strided_layouts import is_same
from evaluators.runner.failures import WrongOutput

if TYPE_CHECKING:
    import torch


def laid_out(output: Any, places: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs in the reference's layout. Raises WrongOutput where they have another form than its."""
    import torch

    try:
        tensors = tensors_of(output)
    except TypeError as error:
        raise WrongOutput(str(error)) from error
    if len(tensors) != len(places):
        raise WrongOutput(f"{len(tensors)} outputs where the reference has {len(places)}")
    found = []
    for number, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
        if reason := _other_form(tensor, place):
            raise WrongOutput(f"output {number} {reason}")
        if tensor.stride() != place.stride() or tensor.is_neg() or tensor.is_conj():
            tensor = torch.empty_like(place).copy_(tensor)  # its layout is work, too, and not the copy's
        found.append(tensor)
    return found


def require_returned(output: Any, inputs: list[torch.Tensor], returned: list[list[int]]) -> None:
    """Raises WrongOutput where an output is not the very input that the reference writes to and returns."""
    tensors = tensors_of(output)
    for number, given in returned:
        if number < len(tensors) and not is_same(tensors[number], inputs[given]):
            which = f"input {given}, which the reference writes to and returns"
            raise WrongOutput(f"output {number} is another tensor than {which}")


def _other_form(tensor: torch.Tensor, place: torch.Tensor) -> str:
    """What makes an output another kind of thing than the reference's; "" for its elements alone."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}, which is no plain tensor"
    if tensor.shape != place.shape or tensor.dtype != place.dtype:
        ours, theirs = (f"{tuple(each.shape)} {each.dtype}" for each in (tensor, place))
        return f"is {ours}, the reference's is {theirs}"
    for what in ("device", "layout"):
        if getattr(tensor, what) != getattr(place, what):
            return f"has the {what} {getattr(tensor, what)}, the reference's {getattr(place, what)}"
    return ""
