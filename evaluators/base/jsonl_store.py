"""Results by key, each saved at once as a line of a JSONL file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


class JsonlStore:
    """A file with one line per result, `{"key": …, "value": …}`. The last line of a key counts. An incomplete
    line, left by a process that was killed, is skipped. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self._torn = bool(text) and not text.endswith("\n")
        self._values: dict[str, Any] = {line["key"]: line["value"] for line in whole_lines(text)}

    def get(self, key: str) -> Any | None:
        """The value stored under a key, or None."""
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:
        """Stores a value of plain JSON types."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if self._torn else "") + json.dumps({"key": key, "value": value}) + "\n")
        self._torn = False
        self._values[key] = value

    def __len__(self) -> int:
        return len(self._values)


def whole_lines(text: str) -> list[dict[str, Any]]:
    """The complete lines of a JSONL file, in order."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # an incomplete line
            found.append(json.loads(line))
    return found
