"""Fixtures for the builder tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluators.build.builder import close_thread_fork_server
from tests.evaluators.conftest import Marked, gone


@pytest.fixture(scope="module")
def one_fork_server(marked: Marked) -> Iterator[None]:
    """The module's builds share a fork server; none of its processes outlives them."""
    yield
    close_thread_fork_server()
    assert gone(marked)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"
