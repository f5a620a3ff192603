"""Arguments and outputs nested in lists, tuples and dicts: their tensors, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PLAIN = (bool, int, float, str)
"""Types that an argument may contain in addition to tensors and None."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a value, in order; those of a dict sorted by key."""
    found: list[torch.Tensor] = []
    map_tensors(found.append, value)
    return found


def map_tensors(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same value with `change` applied to every tensor; other leaves stay as they are."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(change, value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        items = [map_tensors(change, each) for each in value]
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return items
    return value


def replaced(value: Any, tensors: Sequence[Any]) -> Any:
    """The same value with its tensors replaced by these, in order."""
    left = iter(tensors)
    return map_tensors(lambda _: next(left), value)


def template_of(value: Any) -> Any:
    """The structure of a value in plain JSON types, its tensors numbered in order. Raises TypeError for a
    leaf that cannot be sent to another process."""
    numbers = iter(range(len(tensors_in(value))))
    return _template(value, numbers.__next__)


def _template(value: Any, number: Callable[[], int]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return {"tensor": number(), "requires_grad": value.requires_grad}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _template(value[key], number) for key in sorted(value)}}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_template(each, number) for each in value]}
    if value is None or isinstance(value, PLAIN):
        return {"value": value}
    raise TypeError(f"an input contains a {type(value).__name__}; use tensors, numbers, strings and None")


def filled(template: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The value with this structure and these tensors, which are set to require gradients where it says
    so."""
    ((kind, content), *_) = template.items()
    if kind == "tensor":
        return tensors[content].requires_grad_() if template.get("requires_grad") else tensors[content]
    if kind == "dict":
        return {key: filled(each, tensors) for key, each in content.items()}
    if kind in ("list", "tuple"):
        items = [filled(each, tensors) for each in content]
        return items if kind == "list" else tuple(items)
    return content


def plain_values(template: Any) -> list[bool | int | float | str]:
    """The numbers and strings in a structure, in order."""
    ((kind, content), *_) = template.items()
    if kind == "value":
        return [] if content is None else [content]
    if kind == "tensor":
        return []
    parts = content.values() if kind == "dict" else content
    return [value for each in parts for value in plain_values(each)]


def tensors_of(output: Any) -> list[torch.Tensor]:
    """The tensors of an output, in order. Raises TypeError for an output without tensors, or with a leaf that
    is neither a tensor nor None."""
    found = list(_output_tensors(output))
    if not found:
        raise TypeError(f"the output is a {type(output).__name__} without a tensor")
    return found


def _output_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Not a recursive closure: its reference cycle would keep tensors alive while garbage collection is
    off."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _output_tensors(value[key])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _output_tensors(each)
    elif value is not None:
        raise TypeError(f"the output contains a {type(value).__name__}; return tensors only")
