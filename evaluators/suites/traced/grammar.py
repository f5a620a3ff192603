"""Operator calls as text, in the grammar of BackendBench's traces:

    ((T([8, 16], f16, [1, 8]), 2, None), {'dtype': torch.float32, 'device': torch.device('cuda')})

`parse_arguments` parses the text of one call without evaluating it; `write_arguments` writes it. Lists and
tuples are equivalent, as they are to operators: tuples in the records, lists in the text.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from evaluators.base.nearest import nearest
from evaluators.suites.traced.call import (
    CONSTANTS,
    DTYPES,
    SHORT,
    Constant,
    Device,
    Tensor,
    TracedCall,
    Value,
)

DEEPEST = 20
"""Largest number of open brackets."""
Made = TypeVar("Made")


class BadTrace(ValueError):
    """A text is not a valid call; the message says in one line where and why."""

    def __init__(self, where: str, column: int, why: str) -> None:
        super().__init__(f"{where}, column {column}: {why}")


def parse_arguments(
    text: str, *, where: str = "line 1", column: int = 1
) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """The arguments and keyword arguments of a call. `where` and `column` are the position of the text's
    first character. Raises BadTrace."""
    inner = text.strip()
    if len(inner) > 1 and inner[0] == inner[-1] and inner[0] in "'\"":  # quoted in some tables
        inner = inner[1:-1]
    return _Parser(inner, where, column + text.find(inner)).call()


@functools.lru_cache(maxsize=1024)
def call_of(operator: str, text: str) -> TracedCall:
    """The call of an operator with the arguments in the text, cached. Raises BadTrace."""
    arguments, keywords = parse_arguments(text)
    return TracedCall(operator=operator, arguments=arguments, keywords=keywords)


def write_arguments(call: TracedCall) -> str:
    """The text of a call's arguments. Raises ValueError for a string that would be parsed as another
    value."""
    arguments = "".join(f"{_written(each)}, " for each in call.arguments)
    keywords = ", ".join(f"{key!r}: {_written(value)}" for key, value in call.keywords.items())
    return f"(({arguments.rstrip(' ')}), {{{keywords}}})"


_TOKENS = re.compile(
    r"""\s*(?:
    (?P<number>[-+]?(?:(?:inf|nan)\b|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w)))
    |(?P<name>[A-Za-z_]\w*(?:\.\w+)*)
    |(?P<string>'(?:[^'\\]|\\(?:[\\'"nrt]|x[\da-f]{2}|u[\da-f]{4}|U[\da-f]{8}))*'
               |"(?:[^"\\]|\\(?:[\\'"nrt]|x[\da-f]{2}|u[\da-f]{4}|U[\da-f]{8}))*")
    |(?P<mark>[()\[\]{},:=])
    |(?P<end>$)
    )""",
    re.VERBOSE,
)
_QUOTED_DEVICE = re.compile(r"torch\.device\(\s*['\"]?([\w:]+)['\"]?\s*\)")
_DEVICES = ("torch.device", "th.device", "device")
_CLOSING = {"(": ")", "[": "]"}


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


class _Parser:
    """Recursive descent with one token of lookahead."""

    def __init__(self, text: str, where: str, column: int) -> None:
        self._text, self._where, self._column = text, where, column
        self._at = self._depth = 0
        self._next = self._scan()

    def call(self) -> tuple[tuple[Value, ...], dict[str, Value]]:
        self._expect("(")
        self._expect("(")
        arguments = self._items(")")
        self._expect(",")
        keywords = self._keywords()
        if self._next.text == ",":
            self._take()
        self._expect(")")
        if self._next.kind != "end":
            raise self._bad(f"{self._shown()} after the end of the call")
        return arguments, keywords

    def _value(self) -> Value:
        token = self._take()
        if token.text in _CLOSING:
            if self._depth >= DEEPEST:
                raise self._bad(f"more than {DEEPEST} brackets are open", token)
            self._depth += 1
            items = self._items(_CLOSING[token.text])
            self._depth -= 1
            return items
        if token.kind == "number":
            whole = re.fullmatch(r"[-+]?\d+", token.text)
            return self._checked(token, int if whole else float, token.text)
        if token.kind == "string":
            return _of_string(self._checked(token, _unquoted, token.text))
        if token.kind == "name":
            return self._named(token)
        raise self._bad(
            f"a value is expected, not {token.text!r}" if token.text else "the line ends early", token
        )

    def _named(self, token: _Token) -> Value:
        """The value of a name: a Python constant, a type, a torch constant, a tensor or a device."""
        words: dict[str, Value] = {"None": None, "True": True, "False": False}
        if token.text in words:
            return words[token.text]
        if token.text in DTYPES:
            return Constant(DTYPES[token.text])
        if token.text == "T":
            return self._made(token, _make_tensor)
        if token.text in _DEVICES:
            return self._made(token, _make_device)
        module, _, name = token.text.rpartition(".")
        if module in ("torch", "th") and name in CONSTANTS:
            return Constant(name)
        meant = nearest(token.text, (*DTYPES, *words, *(f"torch.{each}" for each in CONSTANTS)))
        raise self._bad(f"unknown name {token.text}" + (f"; did you mean {meant}?" if meant else ""), token)

    def _made(self, token: _Token, make: Callable[..., Value]) -> Value:
        """A value written as a function call with positional and named values."""
        self._expect("(")
        values: list[Value] = []
        named: dict[str, Value] = {}
        while self._next.text != ")":
            value, before = self._value_or_name(), self._next
            if isinstance(value, _Token):
                self._expect("=")
                if value.text in named:
                    raise self._bad(f"{value.text} is given twice", value)
                named[value.text] = self._value()
            elif named:
                raise self._bad("a positional value follows a named one", before)
            else:
                values.append(value)
            self._comma_or(")")
        self._take()
        return self._checked(token, make, *values, **named)

    def _value_or_name(self) -> Value | _Token:
        if self._next.kind == "name" and self._text[self._at :].lstrip().startswith("="):
            return self._take()
        return self._value()

    def _items(self, closing: str) -> tuple[Value, ...]:
        """The values up to the closing bracket, after the opening one."""
        found: list[Value] = []
        while self._next.text != closing:
            found.append(self._value())
            self._comma_or(closing)
        self._take()
        return tuple(found)

    def _keywords(self) -> dict[str, Value]:
        self._expect("{")
        found: dict[str, Value] = {}
        while self._next.text != "}":
            token = self._take()
            if token.kind != "string":
                raise self._bad(f"the name of an argument is expected in quotes, not {token.text!r}", token)
            name = self._checked(token, _unquoted, token.text)
            if name in found:
                raise self._bad(f"the argument {name!r} is given twice", token)
            self._expect(":")
            found[name] = self._value()
            self._comma_or("}")
        self._take()
        return found

    def _comma_or(self, closing: str) -> None:
        if self._next.text == ",":
            self._take()
        elif self._next.text != closing:
            raise self._bad(f"',' or {closing!r} is expected, not {self._shown()}")

    def _expect(self, mark: str) -> None:
        if self._next.text != mark:
            raise self._bad(f"{mark!r} is expected, not {self._shown()}")
        self._take()

    def _take(self) -> _Token:
        taken = self._next
        if taken.kind != "end":
            self._next = self._scan()
        return taken

    def _scan(self) -> _Token:
        matched = _TOKENS.match(self._text, self._at)
        if matched is None or matched.lastgroup is None:
            rest = self._text[self._at :]
            self._at += len(rest) - len(rest.lstrip())
            shown = self._text[self._at : self._at + 12]
            raise self._bad(
                f"{shown!r} is neither a value nor a mark", _Token("", "", self._column + self._at)
            )
        self._at = matched.end()
        kind = matched.lastgroup
        return _Token(kind, matched[kind], self._column + matched.start(kind))

    def _shown(self) -> str:
        return repr(self._next.text) if self._next.text else "the end of the line"

    def _checked(self, token: _Token, make: Callable[..., Made], *values: Any, **named: Any) -> Made:
        """The result of `make`, whose errors become BadTrace."""
        try:
            return make(*values, **named)
        except (ValueError, SyntaxError) as error:
            raise self._bad(str(error), token) from error
        except TypeError as error:  # wrong number or names of arguments
            raise self._bad(str(error).partition("() ")[2] or str(error), token) from error

    def _bad(self, why: str, token: _Token | None = None) -> BadTrace:
        return BadTrace(self._where, (token or self._next).column, why)


def _unquoted(token: str) -> str:
    """The string in a quoted token, the only kind of token that is parsed as Python."""
    return str(ast.literal_eval(token))


def _make_tensor(size: Value, dtype: Value, stride: Value = None, device: Value = None) -> Tensor:
    if not isinstance(dtype, Constant):
        raise ValueError(f"{dtype!r} is not a tensor type")
    place = device.name if isinstance(device, Device) else device
    return Tensor(shape=size, dtype=dtype.name, stride=stride, device=place)  # type: ignore[arg-type]


def _make_device(type: Value, index: Value = None) -> Device:
    if not isinstance(type, str) or not (index is None or isinstance(index, int)):
        raise ValueError("a device takes a name and, optionally, a number")
    return Device(type if index is None else f"{type}:{index}")


def _of_string(text: str) -> Value:
    """The value of a string, which may be a quoted type or device."""
    if text in DTYPES:
        return Constant(DTYPES[text])
    matched = _QUOTED_DEVICE.fullmatch(text)
    return Device(matched[1]) if matched else text


def _written(value: Value) -> str:
    if isinstance(value, Tensor):
        parts = [str(list(value.shape)), SHORT[value.dtype]]
        if value.stride is not None or value.device is not None:
            parts.append(str(None if value.stride is None else list(value.stride)))
        if value.device is not None:
            parts.append(repr(value.device))
        return f"T({', '.join(parts)})"
    if isinstance(value, Constant):
        return f"torch.{value.name}"
    if isinstance(value, Device):
        return f"torch.device({value.name!r})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, str) and _of_string(value) != value:
        raise ValueError(f"the string {value!r} cannot be written: it would be parsed as {_of_string(value)}")
    return repr(value)
