"""Reads the file of a kernel that a command is given."""

from __future__ import annotations

import os
from pathlib import Path

from evaluators.base.cause import first_line
from evaluators.base.languages import language_of
from evaluators.base.nearest import nearest
from evaluators.base.source_file import read_source
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Kernel
from evaluators.suites.definitions.solutions import read_solution


def read_kernel(path: Path, language: str) -> Kernel:
    """The kernel in a file, or the solution in a JSON file (see `evaluators.suites.definitions.solutions`);
    `auto` guesses its language from its imports. Raises UsageError."""
    try:
        source = read_solution(path).source if path.suffix == ".json" else read_source(path)
        return Kernel(source=source, language=language_of(source) if language == "auto" else language)
    except OSError as error:
        raise UsageError(f"kernel={path} cannot be read: {error.strerror}{_nearest_file(path)}") from error
    except ValueError as error:  # not text, or empty
        raise UsageError(f"kernel={path}: {first_line(error)}") from error


def _nearest_file(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return ""
    near = nearest(path.name, names)
    return f"; did you mean {path.with_name(near)}?" if near else ""
