"""Numbers where an operator's schema has a tensor.

For `x * 2.5`, PyTorch calls `aten.mul.Tensor` with a tensor of no dimensions that it marks as a *wrapped
number*: such a tensor does not raise the type of the result above that of other tensors. Functions in Python
get it as a number, but the original does not take numbers from Python. `as_tensors` wraps them again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

KINDS: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
    torch.SymBool: torch.bool,
    torch.SymInt: torch.int64,
    torch.SymFloat: torch.float64,
}
"""The types of numbers, and those of the tensors that stand for them."""
SYMBOLS = (torch.SymBool, torch.SymInt, torch.SymFloat)
_TENSORS = ("Tensor", "Optional[Tensor]")


def tensor_places(form: OpOverload) -> frozenset[int]:
    """The places of the arguments that are tensors in the schema."""
    arguments = enumerate(form._schema.arguments)
    return frozenset(place for place, each in arguments if str(each.type) in _TENSORS)


def number_places(args: Sequence[Any], places: frozenset[int]) -> list[int]:
    """Those of the `places` at which there is a number."""
    return [place for place, each in enumerate(args) if each.__class__ in KINDS and place in places]


def as_tensors(args: Sequence[Any], places: frozenset[int]) -> Sequence[Any]:
    """The arguments with wrapped numbers for the numbers at these places."""
    numbers = number_places(args, places)
    if not numbers:
        return args
    return [_wrapped(each) if place in numbers else each for place, each in enumerate(args)]


def as_tensors_in_a_trace(args: Sequence[Any], places: frozenset[int]) -> Sequence[Any]:
    """The same while a graph is traced, in which the wrapped numbers do not show up as calls."""
    if not number_places(args, places):
        return args
    functionalize = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
    with _disable_current_modes(), torch._C._ExcludeDispatchKeyGuard(functionalize):
        return as_tensors(args, places)


@functools.cache
def prototypes() -> dict[torch.dtype, torch.Tensor]:
    """A wrapped number of each type. Only PyTorch's C++ makes them; autograd gives back the factor that it
    keeps of a product. To be called before the product is overridden."""
    made: dict[torch.dtype, torch.Tensor] = {}
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones((), requires_grad=True)
        for number in (True, 1, 1.0, 1j):
            factor = (leaf * number).grad_fn._saved_other  # type: ignore[union-attr]
            made[factor.dtype] = factor
    return made


def _wrapped(number: Any) -> torch.Tensor:
    dtype = KINDS[number.__class__]
    tensor = prototypes()[dtype].data  # a new tensor with the mark
    if isinstance(number, SYMBOLS):
        tensor._wrapped_number = number  # type: ignore[attr-defined]  # what functions in Python then get
        return tensor
    own = torch.scalar_tensor(number, dtype=dtype).untyped_storage()
    return tensor.set_(own, 0, (), ())
