"""Detects repeated ideas by their words alone, without embeddings."""

from __future__ import annotations

import re
from collections.abc import Iterable

from search.records.tree import Idea

SIMILAR = 88.0
"""Out of 100, by common tokens: two wordings of one idea score above, two ideas in the same jargon below."""


def repeated(text: str, earlier: Iterable[str]) -> bool:
    """Whether a text says the same as an earlier one. Other numbers make it a different idea: tiles of 64 are
    not tiles of 128."""
    from rapidfuzz import fuzz

    words, numbers = _normal(text)
    for other in earlier:
        other_words, other_numbers = _normal(other)
        if words == other_words:
            if numbers == other_numbers:
                return True
        elif numbers == other_numbers and fuzz.token_sort_ratio(words, other_words) >= SIMILAR:
            return True
    return False


def comparable(ideas: Iterable[Idea], parent: str, lineage: Iterable[str]) -> list[str]:
    """The texts that a new idea for `parent` must not repeat: those of ideas for the same parent, and of the
    ideas (`lineage`) that led to it."""
    known = set(lineage)
    return [idea.text for idea in ideas if idea.parent == parent or idea.id in known]


def _normal(text: str) -> tuple[str, tuple[str, ...]]:
    """The lower-case words without punctuation, and the numbers separately."""
    lowered = text.lower()
    numbers = tuple(sorted(re.findall(r"\d+(?:\.\d+)?", lowered)))
    return " ".join(re.findall(r"[a-z]+", lowered)), numbers
