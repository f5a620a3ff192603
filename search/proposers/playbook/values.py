"""The tensors of a forward: which call made each, out of which others, and as what PyTorch's code it is
written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluators.suites.trace_inputs import operator_of
from search.proposers.playbook.meta_calls import Forward, Made
from search.proposers.playbook.operator_problem import in_place

if TYPE_CHECKING:
    import torch

RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
SAME = ("aten._to_copy.default", "aten.detach.default", "aten.alias.default", "aten.clone.default")
"""Operators whose result is their input, but for its type and its place in memory."""


class NotReadError(Exception):
    """The forward, or a part of it, is nothing that the playbook knows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Value:
    """A tensor of a forward. `operator`: what made it, "" for an input; `given`: its arguments by their
    names, tensors among them as values; `part`: which of several results it is. `like` has no numbers."""

    like: torch.Tensor
    operator: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    part: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.like.shape)

    @property
    def sources(self) -> list[Value]:
        """The tensors that it is made of."""
        return list(_values([*self.given.values()]))

    @property
    def is_view(self) -> bool:
        """Whether it only renames memory."""
        if not self.operator:
            return False
        returned = operator_of(self.operator)._schema.returns
        lies = self.operator in RESHAPES or returned[0].alias_info is not None
        return lies and self.operator not in SAME

    @property
    def is_same(self) -> bool:
        """Whether it has the numbers of its first source, which floating types round."""
        return self.operator in SAME and all(
            each.like.is_floating_point() for each in (self, *self.sources[:1])
        )

    @property
    def reached(self) -> Iterator[Value]:
        """It, and all that it follows from, each once, the last first."""
        waiting, seen = [self], {self}
        while waiting:
            yield (value := waiting.pop())
            for each in value.sources:
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)

    def code(self, names: Mapping[Value, str]) -> str:
        """The call that makes it, its arguments by their names. Raises NotReadError for one that cannot be
        written."""
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
    """The inputs and the output. Raises NotReadError where a call writes to what others may read, too."""
    tensors = [*forward.inputs, *forward.weights.values()]
    inputs = [Value(like=each) for each in tensors]
    known = dict(zip(map(id, tensors), inputs, strict=True))
    viewed: set[int] = set()
    for made in forward.calls:
        given = {name: _resolved(each, known) for name, each in made.given().items()}
        _check_writes(made, known, viewed)
        several = isinstance(made.result, tuple | list)
        for part, result in enumerate(made.result if several else [made.result]):
            if result is None:
                continue
            value = Value(
                like=result,
                operator=_functional(made.operator),
                given=given,
                part=part if several else None,
            )
            viewed |= {id(each.like) for each in value.sources} if value.is_view else set()
            known[id(result)] = value
    if id(forward.output) not in known:
        raise NotReadError("the output is none of the calls' results")
    return inputs, known[id(forward.output)]


def _check_writes(made: Made, known: Mapping[int, Value], viewed: set[int]) -> None:
    """A call may write to a tensor of the forward's own of which there is no view."""
    if not operator_of(made.operator)._schema.is_mutable:
        return
    target = known.get(id(made.arguments[0])) if made.arguments else None
    free = target is not None and target.operator and not target.is_view and id(target.like) not in viewed
    if not in_place(made.operator) or not free:
        raise NotReadError(f"{made.operator} changes a tensor")


def _functional(operator: str) -> str:
    """The operator that returns what one in place writes."""
    if not in_place(operator):
        return operator
    space, name, overload = operator.split(".")
    return f"{space}.{name.removesuffix('_')}.{overload}"


def _resolved(value: Any, known: Mapping[int, Value]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            raise NotReadError("a tensor is neither an input nor a call's result")
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
    """As Python writes it. Raises NotReadError."""
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
    raise NotReadError(f"{value!r} cannot be written")
