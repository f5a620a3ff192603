"""Chains of calls: what each call gets depends on the answer to the one before.

Inputs of a block's calls are all there when it begins, so that a kernel could compute them together, as one
large batch, which a real user's calls never are. In a chain nobody can: each call's inputs are changed by a
number made of all the bytes of the answer before. The runner makes these changes, the referee makes them
again from the answers that were handed in, so that who leaves them out is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NUMBERS = 1021
"""How many an answer may give."""


def number_of(answer: torch.Tensor) -> torch.Tensor:
    """An integer below NUMBERS, made of an answer's bytes, a multiple of eight."""
    import torch

    return answer.view(torch.int64).sum().remainder(NUMBERS)


def stir(inputs: Sequence[Any], number: torch.Tensor) -> None:
    """Changes a call's inputs in place, as the number of the answer before says, so that they remain inputs
    of their kind: half of the last dimension of floating-point tensors shrinks by up to a half, which keeps
    signs and zeros; if there are none, integers move round along it."""
    import torch

    tensors = [each for each in inputs if isinstance(each, torch.Tensor) and each.numel()]
    floating = [each for each in tensors if each.is_floating_point()]
    factor = number.mul(-0.5 / NUMBERS).add(1)
    for tensor in floating:
        part = tensor.narrow(-1, 0, (tensor.shape[-1] + 1) // 2) if tensor.dim() else tensor
        part.mul_(factor)
    for tensor in () if floating else tensors:
        if tensor.dim():
            places = torch.arange(tensor.shape[-1], device=tensor.device).add_(number)
            tensor.copy_(tensor.index_select(-1, places.remainder_(tensor.shape[-1])))
