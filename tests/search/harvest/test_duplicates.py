"""Which rows are duplicates."""

from __future__ import annotations

from typing import Any

import pytest

from search.harvest.duplicates import jaccard, without_duplicates
from search.harvest.rows import Row
from tests.search.harvest.story import kernel

A, B, NEAR_A = kernel("a").source, kernel("b").source, kernel("a", changed=1).source


def track(sequence: Any, _: str) -> Any:
    return sequence


def rows(*compared: tuple[str, ...]) -> list[Row]:
    return [Row(values={"n": n}, compared=texts, worth=0.0) for n, texts in enumerate(compared)]


def kept(found: list[Row], threshold: float) -> tuple[list[int], int, int]:
    left, exact, near = without_duplicates(found, threshold, track)
    return [row.values["n"] for row in left], exact, near


def test_rows_that_differ_in_white_space_are_duplicates() -> None:
    assert kept(rows((A,), (B,), (A.replace("\n", "\n\n"),)), 1) == ([0, 1], 1, 0)


@pytest.mark.slow
def test_similar_rows_are_near_duplicates() -> None:
    assert 0.95 < jaccard(A, NEAR_A) < 1
    assert kept(rows((A,), (NEAR_A,), (B,)), 0.95) == ([0, 2], 0, 1)
    assert kept(rows((A,), (NEAR_A,), (B,)), 1) == ([0, 1, 2], 0, 0)


def test_all_texts_must_match_at_their_positions() -> None:
    assert kept(rows((A, B), (NEAR_A, B), (A, A), (B, A), (A,)), 0.95) == ([0, 2, 3, 4], 0, 1)


@pytest.mark.parametrize("changed", range(0, 60, 6))
def test_no_duplicate_above_the_threshold_is_missed(changed: int) -> None:
    """MinHash only finds candidates; these are compared exactly."""
    other = kernel("a", changed=changed).source
    index = jaccard(A, other)
    assert len(kept(rows((A,), (other + "#",)), index * 0.99)[0]) == 1
    if changed:
        assert len(kept(rows((A,), (other,)), min(1.0, index * 1.01))[0]) == 2


def test_texts_shorter_than_a_shingle() -> None:
    assert jaccard("", "") == 1
    assert jaccard("a", "b") == 0
    assert kept(rows(("",), ("a",), ("a b",)), 0.9) == ([0, 1, 2], 0, 0)
