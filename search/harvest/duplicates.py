"""Removes exact and near duplicates: MinHash finds the candidates, the exact Jaccard index decides."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from search.harvest.corpus import Track
from search.harvest.rows import Row

if TYPE_CHECKING:
    import numpy

TOKEN = re.compile(r"\w+|[^\w\s]")
SHINGLE = 5
"""Consecutive tokens that form one n-gram."""
PERMUTATIONS = 128


def without_duplicates(
    rows: Sequence[Row], threshold: float, track: Track[Any]
) -> tuple[list[Row], int, int]:
    """The rows to keep, and the numbers of exact and near duplicates that were removed.

    Two rows are duplicates if each pair of their compared texts is equal up to white space, or has a Jaccard
    index of token 5-grams of at least `threshold` (1: only equal ones). The earlier row is kept.
    """
    exact: dict[tuple[str, ...], Row] = {}
    for row in rows:
        exact.setdefault(tuple(" ".join(text.split()) for text in row.compared), row)
    kept = _without_near(list(exact.values()), threshold, track) if threshold < 1 else list(exact.values())
    return kept, len(rows) - len(exact), len(exact) - len(kept)


def jaccard(one: str, other: str) -> float:
    """The Jaccard index of two texts' token 5-grams, from 0 to 1."""
    import numpy

    a, b = shingles(one), shingles(other)
    common = len(numpy.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


@lru_cache(maxsize=1 << 13)
def shingles(text: str) -> numpy.ndarray[Any, Any]:
    """Sorted uint64 hashes of the token 5-grams; at least one."""
    import numpy

    tokens = TOKEN.findall(text)
    grams = {" ".join(tokens[n : n + SHINGLE]) for n in range(max(1, len(tokens) - SHINGLE + 1))}
    digests = b"".join(hashlib.blake2b(gram.encode(), digest_size=8).digest() for gram in grams)
    return numpy.sort(numpy.frombuffer(digests, dtype=numpy.uint64))


def _without_near(rows: Sequence[Row], threshold: float, track: Track[Any]) -> list[Row]:
    from datasketch import MinHash, MinHashLSH

    # Favour recall: each candidate is compared exactly afterwards.
    index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=(0.1, 0.9))
    kept: list[Row] = []
    for row in track(rows, "comparing rows"):
        sketch = MinHash(num_perm=PERMUTATIONS, hashfunc=int)
        # Salt the hashes by position, so that texts at different positions never match. If each pair of
        # texts reaches the threshold, so does the union.
        for place, text in enumerate(row.compared):
            sketch.update_batch(((shingles(text) ^ (place * 0x9E3779B97F4A7C15 % 2**64)) >> 32).tolist())
        others = (kept[number] for number in index.query(sketch))
        if not any(_near(row, other, threshold) for other in others):
            index.insert(len(kept), sketch)
            kept.append(row)
    return kept


def _near(row: Row, other: Row, threshold: float) -> bool:
    return len(row.compared) == len(other.compared) and all(
        jaccard(one, two) >= threshold for one, two in zip(row.compared, other.compared, strict=True)
    )
