"""Fixtures of the tests of searches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.desk_fakes import Office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(path=tmp_path / "model_calls.jsonl")
