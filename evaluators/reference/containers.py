"""Arguments and outputs that lie in lists, tuples and dicts: their tensors, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PLAIN = (bool, int, float, str)
"""Values beside tensors that an argument may hold; None, too."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a value, in order; a dict's by its keys' names, whatever order they were put in."""
    found: list[torch.Tensor] = []
    map_tensors(found.append, value)
    return found


def map_tensors(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same value with every tensor changed, each in its place; other leaves as they are."""
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
    """The same value with these tensors in the places of its own."""
    left = iter(tensors)
    return map_tensors(lambda _: next(left), value)


def template_of(value: Any) -> Any:
    """The form of a value in plain JSON types, its tensors numbered in order. Raises TypeError, in words,
    for what no process can be told."""
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
    raise TypeError(f"an input holds a {type(value).__name__}; tensors, numbers, strings and None are known")


def filled(template: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The value of this form with these tensors, which from now on require gradients where its own do."""
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
    """Numbers and strings in a form, in order."""
    ((kind, content), *_) = template.items()
    if kind == "value":
        return [] if content is None else [content]
    if kind == "tensor":
        return []
    parts = content.values() if kind == "dict" else content
    return [value for each in parts for value in plain_values(each)]


def tensors_of(output: Any) -> list[torch.Tensor]:
    """The tensors of an output, of which lists, tuples and dicts may hold several. Raises TypeError, in
    words, where there is none, or something else."""
    found = list(_output_tensors(output))
    if not found:
        raise TypeError(f"the output is a {type(output).__name__} without a tensor")
    return found


def _output_tensors(value: Any) -> Iterator[torch.Tensor]:
    """No closure calls itself here: such a cycle keeps tensors alive where nothing collects garbage."""
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
        raise TypeError(f"the output holds a {type(value).__name__}, where tensors are known")
