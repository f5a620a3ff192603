"""Which ideas were had before: by their words alone, without embeddings."""

from __future__ import annotations

import re
from collections.abc import Iterable

from search.records.tree import Idea

SIMILAR = 88.0
"""Of 100, by the tokens in common: two wordings of one idea are above, two ideas in one jargon below."""


def repeated(text: str, earlier: Iterable[str]) -> bool:
    """Whether a text says what an earlier one does. Other numbers make another idea: tiles of 64 are not
    tiles of 128."""
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
    """The texts that a new idea on `parent` must not repeat: those on the same parent, and those whose
    kernels the parent has come from (`lineage`, ids of ideas): it has them in it."""
    known = set(lineage)
    return [idea.text for idea in ideas if idea.parent == parent or idea.id in known]


def _normal(text: str) -> tuple[str, tuple[str, ...]]:
    """Lower-case words without marks, and the numbers apart."""
    lowered = text.lower()
    numbers = tuple(sorted(re.findall(r"\d+(?:\.\d+)?", lowered)))
    return " ".join(re.findall(r"[a-z]+", lowered)), numbers
