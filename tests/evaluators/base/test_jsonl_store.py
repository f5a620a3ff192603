"""Results stored line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.base.jsonl_store import JsonlStore, append_line, only_writer
from evaluators.base.usage_error import UsageError


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


@pytest.mark.parametrize(
    "torn", [b'{"key": "b", "val', b"\xff\xfe", b"\0" * 8, b"[1]", b"7", b'{"key": 1}', b'"']
)
def test_a_line_torn_while_a_store_is_open_takes_no_other_with_it(tmp_path: Path, torn: bytes) -> None:
    """Another process was killed, or the disk was full."""
    path = tmp_path / "kept.jsonl"
    store = JsonlStore(path)
    store.put("a", 1)
    with path.open("ab") as file:
        file.write(torn)
    store.put("c", 3)
    again = JsonlStore(path)
    assert (again.get("a"), again.get("c"), len(again)) == (1, 3, 2)


def test_only_one_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "below" / "kept.jsonl"
    with only_writer(path, "comparison"):
        with (
            pytest.raises(UsageError, match=f"another process is running this comparison: {path} is locked"),
            only_writer(path, "comparison"),
        ):
            pass
        append_line(path, "{}")
    with only_writer(path, "comparison"):
        assert path.read_text() == "{}\n"
