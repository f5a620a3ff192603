"""Finds the part of a forward that one kernel can compute: element-wise operators with views among them, and
reductions over the same dimensions.

Element-wise operators commute with views: an operator applied to a view is the view of the operator's result.
So all views move to the kernel's operands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from evaluators.suites.traced.inputs import operator_of, takes_tensors
from search.proposers.playbook.formulas import GELUS, OPERANDS, formula_of
from search.proposers.playbook.passes import (
    NORMALISATIONS,
    REDUCTIONS,
    Pass,
    add_normalisation,
    add_passes,
    add_step,
    filled,
)
from search.proposers.playbook.values import NotReadError, Value

POWERS = {"1.0": "a", "2.0": "a * a", "3.0": "a * a * a", "0.5": "sqrt(a)", "-0.5": "1 / sqrt(a)"}
"""The formulas of `pow` by exponent."""
BATCH_NORMS = tuple(
    f"aten.{name}.default"
    for name in ("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
)
BATCH_NORM = {
    "cpu": "a * (b * (1 / sqrt(e + s0))) + (c - d * (b * (1 / sqrt(e + s0))))",
    "cuda": "(a - d) * (1 / sqrt(e + s0)) * b + c",
}
"""Formulas of input, weight, bias, mean and variance, if mean and variance are given. They follow PyTorch's
order of operations on each device, which decides what happens to infinities."""


@dataclass(frozen=True)
class View:
    """A view: Python code with `{}` for its source, and the resulting shape."""

    code: str
    shape: tuple[int, ...]

    @property
    def is_reshape(self) -> bool:
        """Whether all elements keep their order."""
        return self.code.startswith(("{}.reshape(", "torch.ops.aten.unsqueeze."))


def reshape(*shape: int) -> View:
    """A reshape to this shape."""
    return View(f"{{}}.reshape({list(shape)})", shape)


def view_of(value: Value) -> View:
    """A value that is a view, as a `View` of its source. Raises NotReadError."""
    (source,) = value.sources
    return View(value.code({source: "{}"}), value.shape)


Operand = tuple[Value, tuple[View, ...]]


@dataclass
class _Progress:
    """The steps and operands that were read so far."""

    steps: dict[str, str | Pass] = field(default_factory=dict)
    operands: dict[Operand, str] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    covered: set[Value] = field(default_factory=set)
    dims: tuple[int, ...] | None = None

    def copied(self) -> _Progress:
        """An independent copy."""
        return replace(
            self,
            steps=dict(self.steps),
            operands=dict(self.operands),
            names=dict(self.names),
            covered=set(self.covered),
        )


class Region:
    """The part of the computation of `root` that one kernel can do.

    Attributes:
        steps: By name a text over earlier steps and operands, or a pass over the dimensions `dims`.
        operands: The kernel's operands, with their names.
        last: The step that is the result.
        shape: The shape of the elements.
        dims: The reduced dimensions, counted from the end; None if nothing is reduced.
        kept: Whether the result has one element for each row.
        keepdim: Whether such a result keeps the reduced dimensions.
        covered: The values that the kernel computes.

    Raises:
        NotReadError: If a kernel would compute nothing.
    """

    def __init__(self, root: Value, device: str) -> None:
        self.root, self.shape, self.kept, self.keepdim = root, root.shape, False, False
        self._device, self._found, self._inside = device, _Progress(), 0
        if (first := _reduction_before(root)) is not None:
            source, dims = _reduced(first)
            self.shape, self.kept, self._found.dims = source.shape, True, dims
            self.keepdim = len(root.shape) == len(source.shape)
        self.last = self._name(root, ())
        found = self._found
        self.steps, self.operands, self.covered, self.dims = (
            found.steps,
            found.operands,
            found.covered,
            found.dims,
        )
        if not self.operands or root not in self.covered or all(each.is_same for each in self.covered):
            raise NotReadError("nothing is computed")
        shapes = [views[-1].shape if views else value.shape for value, views in self.operands]
        if _broadcast(shapes) != self.shape:
            raise NotReadError("the operands do not broadcast to the shape")

    @property
    def worth(self) -> int:
        """The number of elements that the kernel computes."""
        return sum(math.prod(each.sources[0].shape) for each in self.covered)

    def _name(self, value: Any, views: tuple[View, ...]) -> str:
        """The step or operand for a value seen through views."""
        if isinstance(value, bool | int | float):
            return self._number(float(value))
        if value is None:
            raise NotReadError("an argument is omitted")
        key = (value, views)
        if key not in self._found.names:
            before = self._found.copied()
            try:
                name = self._computed(value, views)
            except NotReadError:
                self._found = before
                name = self._operand(value, views)
            self._found.names[key] = name
        return self._found.names[key]

    def _computed(self, value: Value, views: tuple[View, ...]) -> str:
        """The step that computes a value. Raises NotReadError if the value must be an operand."""
        if value.is_same:
            self._found.covered.add(value)
            return self._name(value.sources[0], views)
        if value.is_view:
            (source,) = value.sources
            return self._name(source, _joined(source, view_of(value), views))
        if not value.operator:
            raise NotReadError("an input")
        if formula_of(value.operator) is not None:
            return self._element(value, views)
        if value.operator in BATCH_NORMS and value.part == 0 and value.given.get("training") is False:
            return self._batch_norm(value, views)
        if value.operator in REDUCTIONS:
            return self._reduction(value, views)
        if value.operator in NORMALISATIONS and value.part in (None, 0) and not views:
            return self._normalisation(value)
        raise NotReadError(value.operator)

    def _operand(self, value: Value, views: tuple[View, ...]) -> str:
        """The name of the value as an operand of the kernel."""
        if self.kept and not self._inside and math.prod(value.shape) > 1 and not self.keepdim:
            ones = [1 if n - len(self.shape) in self._dims else n_ for n, n_ in enumerate(self.shape)]
            wide = View(f"{{}}.expand({list(self.root.shape)})", self.root.shape)
            views = (*views, wide, reshape(*ones))
        operands = self._found.operands
        if (value, views) not in operands:
            if len(operands) == len(OPERANDS):
                raise NotReadError("too many operands")
            operands[value, views] = OPERANDS[len(operands)]
        return operands[value, views]

    @property
    def _dims(self) -> tuple[int, ...]:
        return self._found.dims or ()

    def _number(self, value: float) -> str:
        """The step for a number."""
        text = repr(value).replace("inf", "INF")
        if value != value:
            raise NotReadError("a number is NaN")
        return self._step(text)

    def _step(self, text: str | Pass) -> str:
        return add_step(self._found.steps, text)

    def _element(self, value: Value, views: tuple[View, ...]) -> str:
        """The step for an element-wise operator."""
        formula = GELUS.get(value.given.get("approximate", "")) or formula_of(value.operator)
        assert formula is not None
        schema, given = operator_of(value.operator)._schema.arguments, value.given
        tensors = [given[each.name] for each in schema if takes_tensors(each)]
        words = {
            name: self._name(each, _broadcasting(each, value, views))
            for name, each in zip(OPERANDS, tensors, strict=False)
        }
        words |= self._scalars(formula.scalars, given)
        power = POWERS.get(str(self._found.steps.get(words.get("s0", ""), "")))
        self._found.covered.add(value)
        return self._step(filled(power if "pow" in value.operator and power else formula.text, words))

    def _scalars(self, wanted: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
        """The steps for an operator's numbers. Raises NotReadError."""
        own, found = SimpleNamespace(**{f"{name}_": each for name, each in given.items()}), {}
        for name, expression in wanted.items():
            try:
                number = float(eval(expression, {"self": own}))  # an expression of `formulas.py`
            except (NameError, TypeError, ValueError) as error:
                raise NotReadError(str(error)) from error
            found[name] = self._number(number)
        return found

    def _batch_norm(self, value: Value, views: tuple[View, ...]) -> str:
        given = value.given
        channel = reshape(-1, *[1] * (len(value.shape) - 2))
        words = {"a": self._name(given["input"], views), "s0": self._number(given.get("eps", 0.0))}
        for name, argument, otherwise in (
            ("b", "weight", 1.0),
            ("c", "bias", 0.0),
            ("d", "running_mean", None),
            ("e", "running_var", None),
        ):
            each = given[argument]
            if each is None:
                words[name] = self._name(otherwise, ())
                continue
            shape = (*each.shape, *[1] * (len(value.shape) - 2))
            wide = View(f"{{}}.expand({list(value.shape)})", value.shape)
            own = (View(channel.code, shape), wide) if views else (View(channel.code, shape),)
            words[name] = self._name(each, (*own, *views))
        self._found.covered.add(value)
        return self._step(filled(BATCH_NORM[self._device], words))

    def _reduction(self, value: Value, views: tuple[View, ...]) -> str:
        """The step for the result of a reduction."""
        source, dims = _reduced(value)
        ones = tuple(1 if n - len(source.shape) in dims else size for n, size in enumerate(source.shape))
        shape = views[-1].shape if views else value.shape
        whole = not any(size > 1 for size in ones) and math.prod(shape) == 1
        aligned = self.kept or shape == ones or whole
        if not aligned or not all(each.is_reshape for each in views):
            raise NotReadError("its views do not follow the rows")
        self._check_rows(source, dims)
        found = REDUCTIONS[value.operator]
        of = self._gathered_of(source)
        scalars = self._scalars(found.scalars, value.given)
        self._found.covered.add(value)
        return add_passes(self._found.steps, found.passes, {"v": of, **scalars})[-1]

    def _normalisation(self, value: Value) -> str:
        """The step for the result of a normalisation."""
        found, given = NORMALISATIONS[value.operator], value.given
        source = value.sources[0]
        own = SimpleNamespace(**{f"{name}_": each for name, each in given.items()})
        dims = tuple(sorted(_from_the_end(eval(found.dims, {"self": own}), len(source.shape))))
        self._check_rows(source, dims)
        of = self._gathered_of(source)
        words = {"v": of, **self._scalars(found.scalars, given)}
        for name, argument, otherwise in (("w", "weight", 1.0), ("b", "bias", 0.0)):
            if argument in given:
                words[name] = self._name(otherwise if given[argument] is None else given[argument], ())
        self._found.covered.add(value)
        return add_normalisation(self._found.steps, found, words)[0]

    def _check_rows(self, source: Value, dims: tuple[int, ...]) -> None:
        """Raises NotReadError unless all reductions are over the same dimensions of the same shape."""
        if source.shape != self.shape or self._found.dims not in (None, dims) or self._inside > 1:
            raise NotReadError("it reduces other dimensions")
        self._found.dims = dims

    def _gathered_of(self, source: Value) -> str:
        self._inside += 1
        try:
            return self._name(source, ())
        finally:
            self._inside -= 1


def _reduction_before(root: Value) -> Value | None:
    """The reduction that gives `root` its shape, if only element-wise operators lie between; else None."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if value.operator in REDUCTIONS and value.shape == root.shape != value.sources[0].shape:
            return value
        if value.operator and (value.is_same or formula_of(value.operator) is not None):
            waiting += value.sources
    return None


def _reduced(value: Value) -> tuple[Value, tuple[int, ...]]:
    """The source of a reduction, and its dimensions, counted from the end."""
    source = value.sources[0]
    return source, tuple(sorted(_from_the_end(value.given.get("dim"), len(source.shape))))


def _from_the_end(dim: Any, rank: int) -> set[int]:
    named = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return {each % rank - rank for each in named} if rank else set()


def _joined(source: Value, view: View, views: tuple[View, ...]) -> tuple[View, ...]:
    """A view followed by others. Of two reshapes the last one counts; one that changes nothing is dropped."""
    if view.is_reshape and view.shape == source.shape:
        return views
    if views and views[0].is_reshape and view.is_reshape:
        return _joined(source, reshape(*views[0].shape), views[1:])
    return (view, *views)


def _broadcasting(given: Any, value: Value, views: tuple[View, ...]) -> tuple[View, ...]:
    """The views of an operator's result, applied to one of its tensors."""
    if not views or not isinstance(given, Value) or given.shape == value.shape:
        return views
    return (View(f"{{}}.expand({list(value.shape)})", value.shape), *views)


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    import torch

    found: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return tuple(found)
