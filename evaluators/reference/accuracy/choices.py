"""The choices that PyTorch leaves open: of equal elements, `topk`, unstable `sort`, `kthvalue` and `median`
may return any. A kernel may choose another one, and the rest of its answer has to follow from that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from evaluators.reference.dispatch_mode import dispatch_mode

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

OPEN = ("topk", "sort", "kthvalue", "median", "nanmedian")
"""Operators that return values and their numbers along a dimension. With `max` it is the first one."""
ROUNDINGS = 8
"""By how many roundings the chosen value may differ from the right one: the numbers that are compared may be
computed, such as probabilities, and then nearly equal ones are as good as equal ones."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One call of such an operator: its input, its results, and the dimension."""

    source: torch.Tensor
    values: torch.Tensor
    numbers: torch.Tensor
    dim: int
    kept: bool
    """Whether the results have this dimension."""

    def at(self, numbers: torch.Tensor) -> torch.Tensor:
        """The values at other numbers."""
        if not self.source.dim():
            return self.source
        if self.kept:
            return self.source.gather(self.dim, numbers)
        return self.source.gather(self.dim, numbers.unsqueeze(self.dim)).squeeze(self.dim)

    def are_numbers(self, numbers: torch.Tensor) -> bool:
        """Whether these exist along the dimension, and none is there twice."""
        size = self.source.shape[self.dim] if self.source.dim() else 1
        if not bool(((numbers >= 0) & (numbers < size)).all()):
            return False
        if not self.kept or not self.source.dim():
            return True
        ordered = numbers.sort(self.dim).values
        return not bool((ordered.diff(dim=self.dim) == 0).any())


def observed(run: Callable[[], T], given: Sequence[torch.Tensor | None] = ()) -> tuple[T, list[Choice]]:
    """The result of `run` and the choices in it, in their order. `given` has, for each choice in a call of
    the reference, the numbers to choose in place of these, or None."""
    made: list[Choice] = []

    class Choosing(dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            schema = func._schema
            if schema.name.removeprefix("aten::") not in OPEN or len(schema.returns) != 2:
                return out
            named = dict(zip((each.name for each in schema.arguments), args, strict=False)) | (kwargs or {})
            if named.get("stable"):
                return out
            values, numbers = out
            choice = Choice(
                source=named["self"],
                values=values,
                numbers=numbers,
                dim=named.get("dim", -1),
                kept=schema.name in ("aten::topk", "aten::sort") or named.get("keepdim", False),
            )
            made.append(choice)
            other = given[(len(made) - 1) % len(given)] if given else None
            return out if other is None else (choice.at(other), other)

    with Choosing():
        found = run()
    return found, made


def choices_in(
    outputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], made: Sequence[Choice]
) -> list[torch.Tensor | None]:
    """A kernel's own choices, for each one in `made`: where that is an output, and the kernel's differs."""
    import torch

    found: list[torch.Tensor | None] = [None for _ in made]
    for out, right in zip(outputs, eager, strict=True):
        if (
            right.is_floating_point()
            or right.is_complex()
            or out.shape != right.shape
            or torch.equal(out, right)
        ):
            continue
        for number, choice in enumerate(made):
            if choice.numbers.shape == right.shape and torch.equal(
                choice.numbers, right.to(choice.numbers.dtype)
            ):
                found[number] = out.to(choice.numbers.dtype)
    return found


def is_valid(numbers: torch.Tensor, narrow: Choice, wide: Choice) -> bool:
    """Whether these numbers are a right choice, too: those of elements that equal the chosen ones, or differ
    by no more than rounding explains. `wide` is the same choice in float64, or `narrow` again."""
    import torch

    if not narrow.are_numbers(numbers):
        return False
    value, right = narrow.at(numbers), narrow.values
    same = (value == right) | ((value != value) & (right != right))
    if not narrow.source.is_floating_point():
        return bool(same.all())
    true, true_right = wide.at(numbers).double(), wide.values.double()
    own_error = (narrow.at(narrow.numbers).double() - wide.at(narrow.numbers).double()).abs()
    error = (value.double() - true).abs().maximum(own_error)
    allowed = ROUNDINGS * torch.finfo(narrow.source.dtype).eps * true_right.abs() + 2 * error
    return bool((same | ((true - true_right).abs() <= allowed)).all())
