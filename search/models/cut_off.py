"""Answers that were cut off and continued when the question was asked again."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")

OPENED = re.compile(r"^[ \t]*([`~])\1{2,}[^\n`]*\n", re.MULTILINE)
"""The line that opens a code fence. A model opens it again before it continues."""
SAME_START = 20
"""Characters at the start of an answer's code by which an answer that starts anew is recognised."""
LEAST_REPEATED, MOST_REPEATED = 4, 2000
"""Characters of the end of an answer that may be repeated before it is continued."""


def continuations(begun: str, rest: str) -> list[str]:
    """The answers that begin with `begun` and continue with `rest`, the likeliest first: `rest` may repeat
    some of the end, follow it exactly, or begin with the line that was cut. None if it starts anew."""
    opened = OPENED.search(begun)
    start = begun[opened.end() if opened else 0 :].lstrip()[:SAME_START]
    if not start or start in rest:
        return []
    if opened and (again := OPENED.match(rest)) and again[1] == opened[1]:
        rest = rest[again.end() :]
    longest = min(len(begun), len(rest), MOST_REPEATED)
    overlaps = range(longest, LEAST_REPEATED - 1, -1)
    repeated = next((count for count in overlaps if begun.endswith(rest[:count])), 0)
    line = begun.rfind("\n") + 1
    return list(dict.fromkeys((begun + rest[repeated:], begun + rest, begun[:line] + rest)))


def continued(begun: str, rest: str) -> str:
    """The likeliest answer that begins with `begun`; `rest` alone if it starts anew."""
    return next(iter(continuations(begun, rest)), rest)


def reading(read: Callable[[str], Result], begun: str) -> Callable[[str], Result]:
    """Reads an answer with `read` as what continues `begun` or, if that raises ValueError, alone."""

    def read_either(text: str) -> Result:
        for whole in continuations(begun, text):
            with suppress(ValueError):
                return read(whole)
        return read(text)

    return read_either
