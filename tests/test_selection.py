"""The quarter of the slow tests that a run covers."""

from __future__ import annotations

from tests.selection import is_chosen


def test_runs_of_different_commits_cover_different_quarters() -> None:
    tests = [f"tests/test_a.py::test_b[{number}]" for number in range(300)]
    runs = [{test for test in tests if is_chosen(test, f"commit {n}")} for n in range(40)]
    assert all(len(tests) / 7 < len(run) < len(tests) / 3 for run in runs)
    assert set.union(*runs) == set(tests)
