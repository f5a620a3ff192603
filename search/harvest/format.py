"""The protocol of training data formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from search.harvest.corpus import Corpus
from search.harvest.rows import Column, Row


class Format(Protocol):
    """Defines the rows of a dataset. The implementations are in `formats/`, one per file."""

    name: str
    about: str
    """One or two sentences for the dataset's card."""
    columns: tuple[Column, ...]

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """Every row, including duplicates, in an order that depends only on the corpus. Counts in `left_out`
        the candidates that become no row, by reason, with the key that lets them in if there is one."""
        ...
