"""Exact and near duplicates: MinHash finds the candidates, the exact Jaccard index decides."""

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
"""Tokens in a row that are compared as one."""
PERMUTATIONS = 128


def without_duplicates(
    rows: Sequence[Row], threshold: float, track: Track[Any]
) -> tuple[list[Row], int, int]:
    """The rows that are kept, and how many exact and near duplicates were not.

    Rows are duplicates when each of their compared texts is like the other's: equal but for white space, or
    with a Jaccard index of token 5-grams of at least `threshold` (1: equal ones only). Earlier rows are kept.
    """
    exact: dict[tuple[str, ...], Row] = {}
    for row in rows:
        exact.setdefault(tuple(" ".join(text.split()) for text in row.compared), row)
    kept = _without_near(list(exact.values()), threshold, track) if threshold < 1 else list(exact.values())
    return kept, len(rows) - len(exact), len(exact) - len(kept)


def jaccard(one: str, other: str) -> float:
    """How much of the 5-grams of tokens of two texts they have in common: 0 to 1."""
    import numpy

    a, b = shingles(one), shingles(other)
    common = len(numpy.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


@lru_cache(maxsize=1 << 13)
def shingles(text: str) -> numpy.ndarray[Any, Any]:
    """Hashes of the 5-grams of tokens, sorted, uint64; at least one."""
    import numpy

    tokens = TOKEN.findall(text)
    grams = {" ".join(tokens[n : n + SHINGLE]) for n in range(max(1, len(tokens) - SHINGLE + 1))}
    digests = b"".join(hashlib.blake2b(gram.encode(), digest_size=8).digest() for gram in grams)
    return numpy.sort(numpy.frombuffer(digests, dtype=numpy.uint64))


def _without_near(rows: Sequence[Row], threshold: float, track: Track[Any]) -> list[Row]:
    from datasketch import MinHash, MinHashLSH

    # Rather too many candidates than too few: each is looked at exactly.
    index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=(0.1, 0.9))
    kept: list[Row] = []
    for row in track(rows, "comparing rows"):
        sketch = MinHash(num_perm=PERMUTATIONS, hashfunc=int)
        # Texts in different places are different: where each pair has at least the threshold in common, so
        # has the whole.
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
