"""A failure in one line: its cause out of a log, not how it came about; or the message of an error."""

from __future__ import annotations

import re

MOST_CHARACTERS = 300
TRACEBACK = "Traceback (most recent call last):"
LEFT_OUT = "[…]"
"""The line that stands for the middle of a log that was too long."""
COMPILERS = re.compile(
    r"\S+?[:(]\d+[:,\d)]*\s*(fatal |catastrophic )?error\b"  # main.cpp:3:5: error: …, kernel.cu(12): error: …
    r"|(nvcc|ptxas|nvlink|ninja)\s*:? (fatal|error)\b"
    r"|.*undefined reference to "
)
"""How a line begins in which a compiler, an assembler or a linker tells of an error."""


def cause_of(log: str) -> str:
    """The exception at the end of a traceback, of a failed compilation the first error, otherwise the first
    line that says something; "" of an empty log. Printable, and not too long for a line."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and line != LEFT_OUT]
    starts = [number for number, line in enumerate(lines) if line.lstrip().startswith(TRACEBACK)]
    if not starts:
        return _cut(lines[0]) if lines else ""
    first = lines[0].strip()
    if starts[0] > 0 and not first.endswith(":"):
        return _cut(first)  # what became of a process; the traceback is in its output
    raised = _raised(lines[starts[-1] + 1 :])
    return _cut(f"{first} {raised}" if starts[0] > 0 else raised)


def _raised(lines: list[str]) -> str:
    """The exception, out of the lines after the head of its traceback: those of the stack are indented."""
    message = lines[next((n for n, line in enumerate(lines) if not line[0].isspace()), len(lines)) :]
    if not message:
        return TRACEBACK
    for line in map(str.strip, message):
        if COMPILERS.match(line):
            place, _, rest = line.partition(" ")
            return f"{place.rpartition('/')[2]} {rest}"
    # "CompilationError: at 5:4:" and the like say what it is at the end, below the code that it is about.
    return f"{message[0]} {message[-1].strip()}" if message[0].endswith(":") and message[1:] else message[0]


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something; the error's type where none does."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def printable(text: str) -> str:
    """Any text as one line, without line ends and escape sequences."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _cut(text: str) -> str:
    """The text as one line, cut where it is too long."""
    line = printable(text)
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
