"""Results stored line by line."""

from __future__ import annotations

from pathlib import Path

from evaluators.base.jsonl_store import JsonlStore


def test_stored_values_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "below" / "kept.jsonl"
    kept = JsonlStore(path)
    assert (kept.get("a"), len(kept)) == (None, 0)
    kept.put("a", {"x": 1})
    kept.put("b", [2])
    kept.put("a", None)
    kept.put("a", 3)
    again = JsonlStore(path)
    assert (again.get("a"), again.get("b"), len(again)) == (3, [2], 2)


def test_an_incomplete_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    JsonlStore(path).put("a", 1)
    with path.open("a") as file:
        file.write('{"key": "b", "val')
    torn = JsonlStore(path)
    torn.put("c", 3)
    again = JsonlStore(path)
    assert (again.get("a"), again.get("b"), again.get("c")) == (1, None, 3)
