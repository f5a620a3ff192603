"""Integers with a meaning, such as the targets that a loss ignores, found from the operators that a
reference calls.

A random draw hardly ever contains them, so a kernel that treats them like any other number would pass. The
same look at the operators shows which inputs are only calculated with: those may have any value of their
type, whereas an index may not."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluators.reference.containers import tensors_in
from evaluators.reference.dispatch_mode import dispatch_mode
from evaluators.reference.inputs.input_distributions import (
    ALL_IGNORED,
    EMPTY_BAGS,
    IGNORED,
    Distribution,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

COPIES = frozenset({"clone", "_to_copy", "copy", "repeat", "flip", "roll", "cat", "stack"})
"""Operators whose results have the same integers; views have them anyway."""
CALCULATIONS = """
    add sub rsub mul neg abs square sign relu clamp clamp_min clamp_max maximum minimum mm bmm addmm
    baddbmm addbmm mv addmv dot _int_mm convolution sum prod cumsum amax amin aminmax max min argmax
    argmin any all sort topk bitwise_and bitwise_or bitwise_xor bitwise_not eq ne lt le gt ge logical_and
    logical_or logical_not where masked_fill copy_ add_ sub_ mul_ fill_ zeros_like ones_like full_like
    empty_like new_zeros new_ones new_full view _unsafe_view _reshape_alias reshape expand permute
    transpose t unsqueeze squeeze slice select split split_with_sizes unbind alias detach lift_fresh
    unfold constant_pad_nd div pow __and__ __or__ __xor__ __lshift__ __rshift__ bitwise_left_shift
    bitwise_right_shift
"""
"""Operators to which an integer is nothing but a number, in addition to COPIES. Division with a result of
integers is missing, because one by zero or of the smallest number by -1 may end the process."""
CALCULATES = COPIES | {*CALCULATIONS.split()}
BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
COMPARISONS = ("eq", "ne")
SHARE = 0.25
"""The share of the elements that become special."""
FEWEST_BAGS = 3


@dataclass(frozen=True)
class IntegerUses:
    """How a reference uses its integer inputs, by their numbers among the input tensors: those it only
    calculates with, the values that it treats specially, and offsets at which bags of an embedding
    begin."""

    calculated: frozenset[int] = frozenset()
    special: Mapping[int, set[int]] = field(default_factory=dict)
    offsets: frozenset[int] = frozenset()

    def distributions(self) -> Iterator[Distribution]:
        """Inputs with the special values."""
        if self.special:
            some = {number: partial(_some, sorted(values)) for number, values in self.special.items()}
            yield Distribution(name=IGNORED, by_number=some)
            every = {number: partial(_every, min(values)) for number, values in self.special.items()}
            yield Distribution(name=ALL_IGNORED, by_number=every)
        if self.offsets:
            yield Distribution(name=EMPTY_BAGS, by_number=dict.fromkeys(self.offsets, _empty_bags))


def integer_uses(module: nn.Module, inputs: list[Any]) -> IntegerUses:
    """What the operators of `module(*inputs)` do with integer inputs, which the module may change. Never
    raises: if the module fails where its operators are watched, nothing is known, with a warning."""
    import torch

    watch = _Watch()
    for number, tensor in enumerate(tensors_in(inputs)):
        if _is_integer(tensor):
            watch.note(tensor, {number}, copied={number})
    found = frozenset().union(*watch.origins.values())
    if not found:
        return IntegerUses()

    class Mode(dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            watch.see(func, args, kwargs or {}, result)
            return result

    try:
        with torch.no_grad(), Mode():
            module(*inputs)
    except Exception as error:  # the reference's code may raise anything; judging works without this
        logger.warning("the uses of integer inputs are unknown: %s: %s", type(error).__name__, error)
        return IntegerUses()
    special = {number: values for number, values in watch.special.items() if values}
    return IntegerUses(found - watch.elsewhere, special, frozenset(watch.offsets))


class _Watch:
    """The operators that were seen so far."""

    def __init__(self) -> None:
        self.origins: dict[int, set[int]] = {}
        """By the memory of an integer tensor, the inputs from which it was computed."""
        self.copied: dict[int, set[int]] = {}
        """The inputs whose very values it has."""
        self.elsewhere: set[int] = set()
        """The inputs that have reached an operator that does not just calculate."""
        self.special: dict[int, set[int]] = defaultdict(set)
        self.offsets: set[int] = set()
        self._kept: list[torch.Tensor] = []
        """So that no other tensor gets their memory."""

    def note(self, tensor: torch.Tensor, origins: set[int], *, copied: set[int]) -> None:
        """Records where an integer tensor comes from."""
        if origins and tensor.numel():
            place = _place(tensor)
            self.origins.setdefault(place, set()).update(origins)
            self.copied.setdefault(place, set()).update(copied)
            self._kept.append(tensor)

    def see(self, operator: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Records one call."""
        name, overload = operator._overloadpacket.__name__, operator._overloadname
        names = [each.name for each in operator._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        integers = [each for each in tensors_in([*args, *kwargs.values()]) if _is_integer(each)]
        origins = set().union(*(self.origins.get(_place(each), ()) for each in integers))
        if not origins:
            return
        if name not in CALCULATES or overload.endswith("_mode"):
            self.elsewhere |= origins
        self._find_special(name, overload, given)
        copied = set().union(*(self.copied.get(_place(each), ()) for each in integers))
        for each in tensors_in([result]):
            if _is_integer(each) and _place(each) not in self.origins:
                self.note(each, origins, copied=copied if name in COPIES else set())

    def _find_special(self, name: str, overload: str, given: Mapping[str, Any]) -> None:
        def add(argument: str, value: Any) -> None:
            tensor: torch.Tensor | None = given.get(argument)
            if isinstance(value, int) and tensor is not None and _fits(value, tensor):
                for number in self.copied.get(_place(tensor), ()):
                    self.special[number].add(value)

        add("target", given.get("ignore_index"))
        if name in COMPARISONS and overload == "Scalar":
            add("self", given["other"])
        if name in BAGS:
            if given.get("padding_idx", -1) >= 0:
                add("indices", given["padding_idx"])
            self.offsets |= self.copied.get(_place(given["offsets"]), set())


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or str(tensor.dtype) == "torch.bool")


def _fits(value: int, tensor: torch.Tensor) -> bool:
    import torch

    if not _is_integer(tensor):
        return False
    info = torch.iinfo(tensor.dtype)
    return info.min <= value <= info.max


def _some(values: list[int], x: torch.Tensor) -> torch.Tensor:
    """Some elements, at least one per value, but not all if there are more."""
    import torch

    order = torch.randperm(x.numel(), device=x.device)
    found = x.flatten().clone()
    count = max(len(values), int(SHARE * x.numel()))
    for number, value in enumerate(values):
        found[order[number : count : len(values)]] = value
    return found.view(x.shape)


def _every(value: int, x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.full_like(x, value)


def _empty_bags(offsets: torch.Tensor) -> torch.Tensor:
    """Some of the offsets twice, so that there is nothing between them; the first and the last stay."""
    import torch

    if len(offsets) < FEWEST_BAGS:
        return offsets
    chosen = torch.randint(len(offsets), offsets.shape, device=offsets.device).sort().values
    found = offsets[chosen]
    found[:2], found[-1] = offsets[0], offsets[-1]
    return found
