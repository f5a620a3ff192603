"""What a format of training data is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from search.harvest.corpus import Corpus
from search.harvest.rows import Column, Row


class Format(Protocol):
    """What a row is. Concrete ones live in `formats/`, one a file."""

    name: str
    about: str
    """One or two sentences for the dataset's card."""
    columns: tuple[Column, ...]

    def rows(self, corpus: Corpus) -> Iterator[Row]:
        """Every row that there is, duplicates included, in an order that depends on the corpus alone."""
        ...
