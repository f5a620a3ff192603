"""The tensors of a recorded forward: the call that made each one, its sources, and its PyTorch code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluators.suites.traced.inputs import operator_of
from search.proposers.playbook.meta_calls import Forward, MetaCall
from search.proposers.playbook.operator_problem import in_place

if TYPE_CHECKING:
    import torch

RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
SAME = ("aten._to_copy.default", "aten.detach.default", "aten.alias.default", "aten.clone.default")
"""Operators whose result has the elements of their input, possibly in another type or place."""


class NotReadError(Exception):
    """The playbook cannot read a forward, or a part of one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Value:
    """A tensor of a forward.

    Attributes:
        like: A meta tensor of the same shape, strides and type.
        operator: The operator that made it; "" for an input.
        given: The operator's arguments by name, with tensors as values.
        part: Its position among several results; None for an only result.
    """

    like: torch.Tensor
    operator: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    part: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return tuple(self.like.shape)

    @property
    def sources(self) -> list[Value]:
        """The tensors among the operator's arguments."""
        return list(_values([*self.given.values()]))

    @property
    def is_view(self) -> bool:
        """Whether it shares the memory of its source."""
        if not self.operator:
            return False
        returned = operator_of(self.operator)._schema.returns
        lies = self.operator in RESHAPES or returned[0].alias_info is not None
        return lies and self.operator not in SAME

    @property
    def is_same(self) -> bool:
        """Whether it has the elements of its first source, rounded to its floating type."""
        return self.operator in SAME and all(
            each.like.is_floating_point() for each in (self, *self.sources[:1])
        )

    @property
    def reached(self) -> Iterator[Value]:
        """This value and everything it depends on, each once, the last first."""
        waiting, seen = [self], {self}
        while waiting:
            yield (value := waiting.pop())
            for each in value.sources:
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)

    def code(self, names: Mapping[Value, str]) -> str:
        """The Python code of its call; `names` are the variables of its sources. Raises NotReadError."""
        first = names.get(self.given.get("self"), "")  # type: ignore[arg-type]
        if self.operator in RESHAPES:
            return f"{first}.reshape({list(self.shape)})"
        if self.operator == "aten.t.default":
            return f"{first}.t()"
        arguments: list[str] = []
        for each in operator_of(self.operator)._schema.arguments:
            value = self.given[each.name]
            if each.has_default_value() and value is each.default_value:
                continue
            written = _written(value, names)
            plain = not each.kwarg_only and len(arguments) == _position(self.operator, each.name)
            arguments.append(written if plain else f"{each.name}={written}")
        part = "" if self.part is None else f"[{self.part}]"
        return f"torch.ops.{self.operator}({', '.join(arguments)}){part}"


def values_of(forward: Forward) -> tuple[list[Value], Value]:
    """The inputs and weights, and the output. Raises NotReadError if a call writes to memory that others
    read."""
    tensors = [*forward.inputs, *forward.weights.values()]
    inputs = [Value(like=each) for each in tensors]
    known = dict(zip(map(id, tensors), inputs, strict=True))
    viewed: set[int] = set()
    for call in forward.calls:
        given = {name: _resolved(each, known) for name, each in call.named().items()}
        _check_writes(call, known, viewed)
        several = isinstance(call.result, tuple | list)
        for part, result in enumerate(call.result if several else [call.result]):
            if result is None:
                continue
            value = Value(
                like=result,
                operator=_functional(call.operator),
                given=given,
                part=part if several else None,
            )
            viewed |= {id(each.like) for each in value.sources} if value.is_view else set()
            known[id(result)] = value
    if id(forward.output) not in known:
        raise NotReadError("no call returns the output")
    return inputs, known[id(forward.output)]


def _check_writes(call: MetaCall, known: Mapping[int, Value], viewed: set[int]) -> None:
    """Raises NotReadError unless a call that writes does so to an intermediate tensor without views."""
    if not operator_of(call.operator)._schema.is_mutable:
        return
    target = known.get(id(call.arguments[0])) if call.arguments else None
    free = target is not None and target.operator and not target.is_view and id(target.like) not in viewed
    if not in_place(call.operator) or not free:
        raise NotReadError(f"{call.operator} writes to a tensor that others may read")


def _functional(operator: str) -> str:
    """The out-of-place form of an operator."""
    if not in_place(operator):
        return operator
    space, name, overload = operator.split(".")
    return f"{space}.{name.removesuffix('_')}.{overload}"


def _resolved(value: Any, known: Mapping[int, Value]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            raise NotReadError("a tensor is neither an input, a weight nor a result")
        return known[id(value)]
    if isinstance(value, list | tuple):
        return [_resolved(each, known) for each in value]
    return value


def _values(several: list[Any]) -> Iterator[Value]:
    for each in several:
        if isinstance(each, Value):
            yield each
        elif isinstance(each, list):
            yield from _values(each)


def _position(operator: str, name: str) -> int:
    return [each.name for each in operator_of(operator)._schema.arguments].index(name)


def _written(value: Any, names: Mapping[Value, str]) -> str:
    """A Python expression for the value. Raises NotReadError."""
    import torch

    if isinstance(value, Value):
        return names[value]
    if isinstance(value, list):
        return f"[{', '.join(_written(each, names) for each in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    raise NotReadError(f"{value!r} has no Python expression")
