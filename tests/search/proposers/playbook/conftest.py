"""Fixtures of the playbook's tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shared_builds(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates compile into one folder for all processes of this run; each library is renamed into place."""
    folder = run_folder / "templates"
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
