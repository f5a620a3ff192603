"""Results kept line by line."""

from __future__ import annotations

from pathlib import Path

from evaluators.base.jsonl_store import KeptLines


def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "below" / "kept.jsonl"
    kept = KeptLines(path)
    assert (kept.of("a"), len(kept)) == (None, 0)
    kept.keep("a", {"x": 1})
    kept.keep("b", [2])
    kept.keep("a", None)
    kept.keep("a", 3)
    again = KeptLines(path)
    assert (again.of("a"), again.of("b"), len(again)) == (3, [2], 2)


def test_half_a_line_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    KeptLines(path).keep("a", 1)
    with path.open("a") as file:
        file.write('{"key": "b", "val')
    torn = KeptLines(path)
    torn.keep("c", 3)
    again = KeptLines(path)
    assert (again.of("a"), again.of("b"), again.of("c")) == (1, None, 3)
