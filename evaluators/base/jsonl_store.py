"""Results that are kept as soon as they are there: a file of JSON lines, by key."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


class JsonlStore:
    """A file with a line for each result, `{"key": …, "value": …}`; the last line of a key counts. Half a
    line, of a process that was killed, is passed over. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self._torn = bool(text) and not text.endswith("\n")
        self._values: dict[str, Any] = {line["key"]: line["value"] for line in whole_lines(text)}

    def get(self, key: str) -> Any | None:
        """What is kept for a key; None where nothing is."""
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:
        """Adds a result of plain JSON types."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if self._torn else "") + json.dumps({"key": key, "value": value}) + "\n")
        self._torn = False
        self._values[key] = value

    def __len__(self) -> int:
        return len(self._values)


def whole_lines(text: str) -> list[dict[str, Any]]:
    """The lines of such a file, in their order."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # half a line
            found.append(json.loads(line))
    return found
