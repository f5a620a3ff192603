"""The long texts of a report: each once, cut if too long, compressed for the browser to unpack."""

from __future__ import annotations

import base64
import gzip
import json

LONGEST = 60_000
"""The most characters of one text."""
SHORTEST = 500
"""Texts are not cut below this number of characters, even if the page gets too large."""


class Texts:
    """Collects texts; the page's data refers to them by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, text: str) -> int | None:
        """The text's number; None for an empty one."""
        return self._numbers.setdefault(text, len(self._numbers)) if text else None

    def packed(self, most_bytes: int) -> str:
        """All texts as a JSON list, gzipped, in base64. The longest are cut until that takes at most
        `most_bytes`."""
        longest = LONGEST
        while True:
            data = json.dumps([cut(text, longest) for text in self._numbers], ensure_ascii=False)
            found = base64.b64encode(gzip.compress(data.encode("utf-8", "replace"), 6, mtime=0)).decode()
            if len(found) <= most_bytes or longest <= SHORTEST:
                return found
            longest //= 2


def cut(text: str, most: int) -> str:
    """The beginning and the end of a text of more than `most` characters, with a note in between."""
    if len(text) <= most:
        return text
    head, tail = text[: most * 2 // 3], text[-(most // 3) :]
    note = f"[... {len(text) - len(head) - len(tail):,} characters omitted; the run folder has them ...]"
    return f"{head}\n{note}\n{tail}"
