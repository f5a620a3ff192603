"""Which known name was meant by an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SIMILAR = 0.5
"""Similarity from which a name is suggested, from 0 to 1 (`difflib`'s ratio)."""


def nearest(name: str, known: Iterable[str], similar: float = SIMILAR) -> str | None:
    """The known name most like this one, or None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), 1, similar)), None)


def near(value: str, options: Iterable[str]) -> str:
    """The end of an error message: "; did you mean …?", or "" if no option is similar."""
    known = [*options]
    by_tail = {option: option for option in known}
    by_tail |= {option.split("/")[-1]: option for option in reversed(known)}  # of several, the first
    found = nearest(value, by_tail)
    return f"; did you mean {by_tail[found]}?" if found else ""
