"""Dataclasses as plain JSON types, and back by their type hints: the form of journals and result files.

Written by hand on purpose: every runner process imports the records. Decoding an evaluation of 20 cases takes
0.45 ms (pydantic 0.2 ms, msgspec 0.13 ms), but importing pydantic and building its adapter takes 200 ms,
importing msgspec 9 ms.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, Self


class JsonRecord:
    """A dataclass with a JSON form."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON types, from which `from_json` restores an equal one."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Restores what `to_json` returned. Raises TypeError, ValueError or KeyError for anything else. A
        record with older forms overrides this to accept them."""
        restored: Self = from_fields(cls, data)
        return restored


def from_fields(record: Any, data: Mapping[str, Any]) -> Any:
    """An instance of the dataclass `record` from the JSON form of its fields."""
    readers = _readers(record)
    return record(
        **{name: readers[name](value) if name in readers else value for name, value in data.items()}
    )


@cache
def _readers(record: Any) -> dict[str, Callable[[Any], Any]]:
    """How to restore each field whose JSON form differs from its value."""
    found = {name: _reader(hint) for name, hint in typing.get_type_hints(record).items()}
    return {name: reader for name, reader in found.items() if reader is not None}


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        reader = next(filter(None, map(_reader, arguments)), None)
        return None if reader is None else partial(_unless_none, reader)
    if origin in (tuple, Sequence):
        reader = _reader(arguments[0])
        return tuple if reader is None else lambda values: tuple(map(reader, values))
    if not isinstance(hint, type):
        return None
    if issubclass(hint, JsonRecord):
        return hint.from_json
    if issubclass(hint, Enum):
        return hint
    return partial(from_fields, hint) if is_dataclass(hint) else None


def require_types(record: Any) -> None:
    """Checks the types of a dataclass's fields, of the dataclasses in it, and of the elements of tuples and
    mappings. JSON that was edited or damaged may have any type in their places. Raises TypeError."""
    for name, (kinds, inner) in _types_of(record.__class__).items():
        value = getattr(record, name)
        elements = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
        values = [("", kinds, value), *((" of an element", inner, each) for each in elements)]
        for what, wanted, each in values:
            if wanted and not (isinstance(each, wanted) and (bool in wanted or not isinstance(each, bool))):
                names = " or ".join(kind.__name__ for kind in wanted)
                raise TypeError(f"{name}{what} is {each!r:.60}, not {names}")
            if is_dataclass(each):
                require_types(each)


Types = tuple[type, ...]


@cache
def _types_of(record: Any) -> dict[str, tuple[Types, Types]]:
    """For each field, the types that it may have and those of its elements; none where anything may be
    there."""
    hints = typing.get_type_hints(record)
    return {each.name: (_types(hint := hints[each.name]), _inner_types(hint)) for each in fields(record)}


def _types(hint: Any) -> Types:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        found = [_types(each) for each in typing.get_args(hint)]
        return tuple(kind for kinds in found for kind in kinds) if all(found) else ()
    if hint is float:
        return (float, int)
    kind = origin or hint
    return (kind,) if isinstance(kind, type) else ()


def _inner_types(hint: Any) -> Types:
    """The types of a tuple's or a mapping's elements."""
    if typing.get_origin(hint) not in (tuple, dict, Sequence, Mapping):
        return ()
    *_, last = (each for each in typing.get_args(hint) if each is not ...)
    return _types(last)


def _unless_none(reader: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else reader(value)
