"""A failure in one line: the cause from a log, or the message of an error."""

from __future__ import annotations

from evaluators.base.compiler_messages import reports_error

MOST_CHARACTERS = 300
TRACEBACK = "Traceback (most recent call last):"
LEFT_OUT = "[…]"
"""The line that replaces the middle of a log that was too long."""


def cause_of(log: str) -> str:
    """The cause in a log, as one printable line of at most MOST_CHARACTERS: the exception at the end of a
    traceback, the first error of a failed compilation, otherwise the first line that is not blank. "" for an
    empty log."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and line != LEFT_OUT]
    starts = [number for number, line in enumerate(lines) if line.lstrip().startswith(TRACEBACK)]
    if not starts:
        errors = (line for line in lines if lines[0].endswith(":") and reports_error(line))
        return _cut(next(errors, lines[0])) if lines else ""
    first = lines[0].strip()
    if starts[0] > 0 and not first.endswith(":"):
        return _cut(first)  # how a process ended; the traceback is in its output
    raised = _raised(lines[starts[-1] + 1 :])
    return _cut(f"{first} {raised}" if starts[0] > 0 else raised)


def _raised(lines: list[str]) -> str:
    """The exception, from the lines after the head of its traceback. Lines of the stack are indented."""
    message = lines[next((n for n, line in enumerate(lines) if not line[0].isspace()), len(lines)) :]
    if not message:
        return TRACEBACK
    for line in map(str.strip, message):
        if reports_error(line):
            place, _, rest = line.partition(" ")
            return f"{place.rpartition('/')[2]} {rest}"
    # "CompilationError: at 5:4:" and the like quote the code first and give the reason in the last line.
    return f"{message[0]} {message[-1].strip()}" if message[0].endswith(":") and message[1:] else message[0]


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not blank, or the name of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def printable(text: str) -> str:
    """A text as one line, without line ends and escape sequences."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _cut(text: str) -> str:
    """A text as one line of at most MOST_CHARACTERS."""
    line = printable(text)
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
