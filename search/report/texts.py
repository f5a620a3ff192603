"""The long texts of a report: each once, cut where they are too long, packed for the browser to unpack."""

from __future__ import annotations

import base64
import gzip
import json

LONGEST = 60_000
"""Characters of one text, at most."""
SHORTEST = 500
"""Texts are cut no further, whatever is left of the page."""


class Texts:
    """Collects texts; the page's data refers to them by their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, text: str) -> int | None:
        """The text's number; None for an empty one."""
        return self._numbers.setdefault(text, len(self._numbers)) if text else None

    def packed(self, most_bytes: int) -> str:
        """All texts as a JSON list, gzipped, in base64. The longest ones are cut until that takes at most so
        many bytes."""
        longest = LONGEST
        while True:
            data = json.dumps([cut(text, longest) for text in self._numbers], ensure_ascii=False)
            found = base64.b64encode(gzip.compress(data.encode("utf-8", "replace"), 6, mtime=0)).decode()
            if len(found) <= most_bytes or longest <= SHORTEST:
                return found
            longest //= 2


def cut(text: str, most: int) -> str:
    """The beginning and the end of a text of more than `most` characters, with a note between them."""
    if len(text) <= most:
        return text
    head, tail = text[: most * 2 // 3], text[-(most // 3) :]
    note = f"[... {len(text) - len(head) - len(tail):,} characters are left out; the run folder has them ...]"
    return f"{head}\n{note}\n{tail}"
