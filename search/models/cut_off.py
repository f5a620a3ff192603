"""Answers that were cut off and continued when the question was asked again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

OPENED = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)
"""The line that opens a code fence. A model opens it again before it continues."""
SAME_START = 20
"""Characters at the start of an answer's code by which an answer that starts anew is recognised."""
LEAST_REPEATED, MOST_REPEATED = 4, 2000
"""Characters of the end of an answer that may be repeated before it is continued."""


def continued(begun: str, rest: str) -> str:
    """The answer that begins with `begun` and continues with `rest`, which may repeat some of the end. `rest`
    alone if it starts anew."""
    opened = OPENED.search(begun)
    start = begun[opened.end() if opened else 0 :].lstrip()[:SAME_START]
    if not start or start in rest:
        return rest
    if opened and (again := OPENED.match(rest)):
        rest = rest[again.end() :]
    longest = min(len(begun), len(rest), MOST_REPEATED)
    overlaps = range(longest, LEAST_REPEATED - 1, -1)
    repeated = next((count for count in overlaps if begun.endswith(rest[:count])), 0)
    return begun + rest[repeated:]


def reading(read: Callable[[str], Result], begun: str) -> Callable[[str], Result]:
    """Reads an answer with `read` as what continues `begun` or, if that raises ValueError, alone."""

    def read_either(text: str) -> Result:
        if (whole := continued(begun, text)) != text:
            try:
                return read(whole)
            except ValueError:
                pass
        return read(text)

    return read_either
