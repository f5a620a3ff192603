"""The words of a command line, `key=value`, as Hydra reads them: a text that its grammar would refuse, or
take for something else, is quoted.

Every command's words pass through `for_hydra`, so that `out=/tmp/a b(c),d=e'f` is that folder. A value that
is quoted already stays as it is, which makes a second pass harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Quote, QuotedString, Sweep
from hydra.errors import HydraException


class Kind(Enum):
    """What a key takes."""

    TEXT = "a text"
    TEXTS = "a list of texts"
    CHOICE = "a choice of its group"
    OTHER = "a number, a truth value, or a list or mapping of such"


UNREADABLE = object()
"""In place of a value that is not in Hydra's grammar."""
QUOTES = ("'", '"')
ITEM = re.compile(r"""\s*(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")\s*(?=,|$)|[^,]+""")
"""An item of a list, or of a sweep."""

_parser = OverridesParser.create()


def quoted(value: Any) -> str:
    """A text as the value of a word, quoted unless Hydra reads it as that text anyway."""
    text = str(value)
    return text if _read(text) == text else QuotedString(text=text, quote=Quote.single).with_quotes()


def overrides(keys: Mapping[str, Any], place: str = "") -> list[str]:
    """Values as words, `key=value`; the keys of a mapping are those below its own. `place`: what the keys
    begin with. The Python API passes its arguments on in this form, which comparisons and datasets record."""
    found: list[str] = []
    for key, value in keys.items():
        if isinstance(value, Mapping):
            found += overrides(value, f"{place}{key}.")
        else:
            found.append(f"{place}{key}={_word(value)}")
    return found


def text_of(value: str) -> str:
    """The text that the value of a word stands for: without its quotes, if it is quoted."""
    return str(_read(value)) if _is_quoted(value) else value


def items_of(value: str) -> list[str]:
    """The values of a sweep, or the items of a list without its brackets, each as the value of a word."""
    return [each.strip() for each in ITEM.findall(value)]


def without_key(words: Sequence[str], key: str) -> list[str]:
    """The words, with `key=` in front of those that have no key: `runs/mine`, and an existing `runs/lr=3`."""
    return [f"{key}={quoted(each)}" if "=" not in each or Path(each).exists() else each for each in words]


def for_hydra(words: Sequence[str], kinds: Mapping[str, Kind], *, sweep: bool = False) -> list[str]:
    """The words, quoted where necessary. `kinds`: what the keys take; others take anything. `sweep`: whether
    commas separate the values of several jobs."""
    found = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and not key.startswith("~"):
            word = f"{key}={_written(value, kinds.get(key.lstrip('+')), sweep)}"
        found.append(word)
    return found


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return quoted(value)
    if isinstance(value, Sequence):
        return f"[{','.join(map(_word, value))}]"
    return str(value)


def _written(value: str, kind: Kind | None, sweep: bool) -> str:
    read = _read(value)
    if sweep and isinstance(read, Sweep | Glob) and not _is_plain_sweep(read):
        return value  # choice(a,b), range(1,5)
    if sweep and (kind is Kind.TEXT or read is UNREADABLE) and len(items := items_of(value)) > 1:
        return ",".join(_written(each, kind, False) for each in items)
    if kind is Kind.TEXT:
        return _verbatim(value)
    if value.startswith("[") and value.endswith("]"):
        if kind is Kind.TEXTS:
            return f"[{','.join(map(_verbatim, items_of(value[1:-1])))}]"
        if kind is None and read is UNREADABLE and not re.search(r"[{}]", value):
            return f"[{','.join(_written(each, None, False) for each in items_of(value[1:-1]))}]"
    unreadable = read is UNREADABLE and kind in (None, Kind.CHOICE)
    return quoted(value) if unreadable or (_is_plain_sweep(read) and not sweep and kind is None) else value


def _verbatim(value: str) -> str:
    """The value of a text's key: null and quoted values as they are, all others letter by letter."""
    return value if _read(value) is None or _is_quoted(value) else quoted(value)


def _is_quoted(value: str) -> bool:
    return value.startswith(QUOTES) and isinstance(_read(value), str)


def _is_plain_sweep(read: Any) -> bool:
    """Whether Hydra sees a sweep only because of commas."""
    return isinstance(read, ChoiceSweep) and read.simple_form


def _read(value: str) -> Any:
    """What Hydra reads; `UNREADABLE` if the value is not in its grammar."""
    try:
        return _parser.parse_override(f"key={value}").value()
    except HydraException:
        return UNREADABLE
