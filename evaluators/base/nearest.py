"""What was meant by a name that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SIMILAR = 0.5
"""How much of two names has to be the same, between 0 and 1."""


def nearest(name: str, known: Iterable[str], similar: float = SIMILAR) -> str | None:
    """The known name that is most like this one; None where none is."""
    return next(iter(difflib.get_close_matches(name, list(known), 1, similar)), None)


def near(value: str, options: Iterable[str]) -> str:
    """ "; did you mean …?", with the nearest of the options; "" where none is near."""
    by_tail = {option: option for option in options} | {option.split("/")[-1]: option for option in options}
    found = nearest(value, by_tail)
    return f"; did you mean {by_tail[found]}?" if found else ""
