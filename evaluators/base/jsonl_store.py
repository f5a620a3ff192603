"""Results by key, each saved at once as a line of a JSONL file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluators.base.usage_error import UsageError


class JsonlStore:
    """A file with one line per result, `{"key": …, "value": …}`. The last line of a key counts. An incomplete
    line, left by a process that was killed, is skipped. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = whole_lines(path.read_bytes()) if path.exists() else []
        whole = [line for line in lines if {*line} >= {"key", "value"}]
        self._values: dict[str, Any] = {line["key"]: line["value"] for line in whole}

    def get(self, key: str) -> Any | None:
        """The value stored under a key, or None."""
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:
        """Stores a value of plain JSON types."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.path, json.dumps({"key": key, "value": value}))
        self._values[key] = value

    def __len__(self) -> int:
        return len(self._values)


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file. If the file ends in half a line, that one is ended first. Raises OSError."""
    with path.open("ab+") as file:
        torn = file.seek(0, os.SEEK_END) > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
        file.write(b"\n" * torn + line.encode() + b"\n")


def whole_lines(data: bytes) -> list[dict[str, Any]]:
    """The complete lines of a JSONL file, in order."""
    found = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):  # an incomplete line
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


@contextlib.contextmanager
def only_writer(path: Path, what: str) -> Iterator[None]:
    """Only one process at a time gets into the block for this file. Raises UsageError if another one is
    there; `what` names the work."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is running this {what}: {path} is locked; end it first"
            ) from None
        yield
