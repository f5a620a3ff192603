"""Fixtures of the tests of searches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.model_client_fakes import WatchedClient


@pytest.fixture
def watched(tmp_path: Path) -> WatchedClient:
    return WatchedClient(path=tmp_path / "model_calls.jsonl")
