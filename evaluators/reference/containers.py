"""Arguments and outputs nested in lists, tuples and dicts: their tensors, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PLAIN = (bool, int, float, str)
"""Types that an argument may contain in addition to tensors and None."""
TENSOR = "tensor"
"""The form of a tensor; that of None is None."""
SEQUENCES, NAMED, DICT, DATACLASS = ("list", "tuple"), "named tuple", "dict", "dataclass"
"""The kinds of containers. Torch's own named results, such as that of `torch.max`, are tuples."""
Parts = list[tuple[str, Any]]


class WrongForm(TypeError):
    """An input or an output has a form that is not accepted."""


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
    """The structure of a value in plain JSON types, its tensors numbered in order. Raises WrongForm for a
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
    raise WrongForm(f"an input contains a {type(value).__name__}; use tensors, numbers, strings and None")


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
    """The tensors of an output, in order. Raises WrongForm for an output without tensors, or with a leaf that
    is neither a tensor nor None."""
    found = list(_output_tensors(output))
    if not found:
        raise WrongForm(f"the output is a {type(output).__name__} without a tensor")
    return found


def _output_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Not a recursive closure: its reference cycle would keep tensors alive while garbage collection is
    off."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif value is not None:
        for _, each in _known_container(value)[1]:
            yield from _output_tensors(each)


def form_of(output: Any) -> Any:
    """The structure of an output in plain JSON types, for `tensors_like`. Raises WrongForm for a leaf that is
    neither a tensor nor None."""
    import torch

    if isinstance(output, torch.Tensor):
        return TENSOR
    if output is None:
        return None
    kind, parts = _known_container(output)
    return [kind, [[name, form_of(each)] for name, each in parts]]


def tensors_like(output: Any, form: Any) -> list[torch.Tensor]:
    """The tensors of an output, in order. Raises WrongForm unless it has the structure that `form_of` gave
    for the reference's output. A list may stand for a tuple and the reverse, and a named tuple for either,
    because a caller finds the same tensor at each index. Names count: the keys of a dict, the fields of a
    named tuple or of a dataclass, whose classes may have other names."""
    return list(_matching(output, form, "the output"))


def _matching(output: Any, form: Any, where: str) -> Iterator[torch.Tensor]:
    import torch

    found = _container(output)
    if isinstance(output, torch.Tensor) and form == TENSOR:
        yield output
    elif found and isinstance(form, list) and _stands_for(found, form):
        for (_, each), (name, part) in zip(found[1], form[1], strict=True):
            yield from _matching(each, part, f"{where}[{name}]")
    elif output is not None or form is not None:
        raise WrongForm(f"{where} is {_said(output, found)}; the reference's is {_form_said(form)}")


def _stands_for(found: tuple[str, Parts], form: Any) -> bool:
    """Whether a container of this kind with parts of these names may stand for the reference's."""
    kind, names = found[0], [name for name, _ in found[1]]
    expected, expected_names = form[0], [name for name, _ in form[1]]
    if expected in SEQUENCES:
        return kind in (*SEQUENCES, NAMED) and len(names) == len(expected_names)
    return kind == expected and names == expected_names


def _container(value: Any) -> tuple[str, Parts] | None:
    """The kind of a container, and its parts with their names, in a fixed order. None for a value that is no
    container."""
    if isinstance(value, Mapping):
        return DICT, [(repr(key), value[key]) for key in sorted(value, key=str)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return NAMED, list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        kind = SEQUENCES[isinstance(value, tuple)]
        return kind, [(str(number), each) for number, each in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        names = sorted(each.name for each in fields(value))
        return DATACLASS, [(name, getattr(value, name)) for name in names]
    return None


def _known_container(value: Any) -> tuple[str, Parts]:
    """Like `_container`; raises WrongForm for other values."""
    if (found := _container(value)) is None:
        raise WrongForm(f"the output contains a {type(value).__name__}; return tensors only")
    return found


def _said(output: Any, container: tuple[str, Parts] | None) -> str:
    """An output's form in words."""
    import torch

    if container is not None:
        return _container_said(container[0], [name for name, _ in container[1]])
    known = output is None or isinstance(output, torch.Tensor)
    return _form_said(form_of(output)) if known else f"a {type(output).__name__}"


def _form_said(form: Any) -> str:
    if form is None or form == TENSOR:
        return "a tensor" if form else "None"
    return _container_said(form[0], [name for name, _ in form[1]])


def _container_said(kind: str, names: Sequence[str]) -> str:
    if kind in SEQUENCES:
        return f"a {kind} of {len(names)}"
    what = "key" if kind == DICT else "field"
    plural = "s" if len(names) > 1 else ""
    return f"a {kind} with the {what}{plural} {', '.join(names)}" if names else f"an empty {kind}"
