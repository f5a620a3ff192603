"""The tensors and the other arguments of an operator's call, for references, and calls similar to it."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from evaluators.records.cases import moved
from evaluators.reference.containers import tensors_in as all_tensors
from evaluators.suites.traced.call import Device, Tensor, TracedCall, Value
from evaluators.suites.traced.call import tensors_of as tensors_in
from evaluators.suites.traced.grammar import call_of, write_arguments
from evaluators.suites.traced.inputs import make_arguments, operator_of, takes_tensors

TRIES = 20
"""Changes of a call that are tried, because not all are valid."""
LARGE, MOST_GROWTH = 2**20, 4
"""Most elements of a changed call: LARGE, or MOST_GROWTH times those of the original if that is more.
Replacing 1 by 156 in `[1, 64, 1, 1]`, for example, gives 3.8 million times as many."""


def tensors_of(operator: str, text: str) -> list[Any]:
    """The tensors of the call in the text, in schema order, drawn on the default device by torch's
    generators. Omitted tensors are None; lists stay lists."""
    return [value for takes, value in _arguments(operator, text) if takes]


def constants_of(operator: str, text: str) -> list[Any]:
    """The other arguments, in schema order, with defaults for omitted ones. Devices are those of the call,
    unless the default device is `meta`."""
    import torch

    call, names = call_of(operator, text), [name for name, _, _ in _forms_of(operator)]
    pairs = zip(names, _arguments(operator, text), strict=True)
    found = {name: value for name, (takes, value) in pairs if not takes}
    if torch.empty(0).device.type != "meta":
        given = dict(zip(names, call.arguments, strict=False)) | dict(call.keywords)
        found |= {name: torch.device(each.name) for name, each in given.items() if isinstance(each, Device)}
    return list(found.values())


def as_aten(operator: str, function: Callable[..., Any], constants: Sequence[Any]) -> Callable[..., Any]:
    """A function of only the operator's tensors that calls `function` with all arguments in the way programs
    call the operator: without keywords and trailing arguments that equal their defaults."""
    constant = iter(constants)
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    places: list[int | str] = []
    needed = 0
    for each in operator_of(operator)._schema.arguments:
        is_tensor = takes_tensors(each)
        value = None if is_tensor else next(constant)
        if is_tensor or value != each.default_value or not each.has_default_value():
            if each.kwarg_only:
                keywords[each.name] = value
            else:
                needed = len(positional) + 1
        if is_tensor:
            places.append(each.name if each.kwarg_only else len(positional))
        if not each.kwarg_only:
            positional.append(value)
    del positional[needed:]

    def call(*tensors: Any) -> Any:
        given, named = list(positional), dict(keywords)
        for place, tensor in zip(places, tensors, strict=True):
            if isinstance(place, int):
                given[place] = tensor
            else:
                named[place] = tensor
        return function(*given, **named)

    return call


def call_like(operator: str, text: str, generator: random.Random) -> str:
    """The text of a call in which one size is replaced everywhere by another, with tensors that are not much
    larger (see MOST_GROWTH); the same text if the operator accepts none of the calls tried."""
    call = call_of(operator, text)
    values = (*call.arguments, *call.keywords.values())
    sizes = sorted({size for each in values for tensor in tensors_in(each) for size in tensor.shape if size})
    few = max(LARGE, MOST_GROWTH * _elements(call))
    for _ in range(TRIES if sizes else 0):
        old = generator.choice(sizes)
        new = moved(old, sizes, generator)
        other = replace(
            call,
            arguments=tuple(_resized(each, old, new) for each in call.arguments),
            keywords={name: _resized(each, old, new) for name, each in call.keywords.items()},
        )
        if new != old and _elements(other) <= few and _is_taken(other):
            return write_arguments(other)
    return text


def _elements(call: TracedCall) -> int:
    """The number of elements of its tensors."""
    values = (*call.arguments, *call.keywords.values())
    return sum(math.prod(tensor.shape) for each in values for tensor in tensors_in(each))


def _resized(value: Value, old: int, new: int) -> Value:
    """The value with the size replaced in tensors (which become contiguous) and lists; a single number is not
    a size."""
    if isinstance(value, Tensor):
        if old not in value.shape:
            return value
        return replace(value, shape=tuple(new if n == old else n for n in value.shape), stride=None)
    if isinstance(value, tuple):
        return tuple(new if type(each) is int and each == old else _resized(each, old, new) for each in value)
    return value


def _is_taken(call: TracedCall) -> bool:
    """Whether the operator accepts arguments with such shapes."""
    try:
        return keeps_shapes(call, "meta")
    except Exception:  # an operator may raise anything
        return False


def keeps_shapes(call: TracedCall, device: str) -> bool:
    """Whether the operator keeps the shapes of its arguments: an `out` of the wrong shape is resized. Raises
    what the operator raises."""
    given, named = make_arguments(call, device, 0)
    tensors = all_tensors([*given, *named.values()])
    shapes = [each.shape for each in tensors]
    operator_of(call.operator)(*given, **named)
    return shapes == [each.shape for each in tensors]


def _arguments(operator: str, text: str) -> list[tuple[bool, Any]]:
    """For each argument, whether it takes tensors, and its value."""
    import torch

    device = torch.empty(0).device.type  # `get_default_device` copies a number there and waits for it
    given, named = make_arguments(call_of(operator, text), device)
    forms = _forms_of(operator)
    values = {**dict(zip((name for name, _, _ in forms), given, strict=False)), **named}
    return [(is_tensor, values.get(name, default)) for name, is_tensor, default in forms]


@functools.lru_cache(maxsize=256)
def _forms_of(operator: str) -> list[tuple[str, bool, Any]]:
    """For each argument, its name, whether it takes tensors, and its default."""
    arguments = operator_of(operator)._schema.arguments
    return [(each.name, takes_tensors(each), each.default_value) for each in arguments]
