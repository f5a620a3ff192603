"""Which slow tests `make test` runs: those marked `core`, and a quarter of the others, by the commit."""

from __future__ import annotations

import functools
import hashlib
import subprocess
from pathlib import Path

import pytest

PARTS = 4


@functools.cache
def commit() -> str:
    """The checked-out commit; "" outside a git repository, where every run covers the same quarter."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def is_chosen(test: str, at: str) -> bool:
    """Whether a run at this commit covers the slow test."""
    return hashlib.sha256(f"{at} {test}".encode()).digest()[0] % PARTS == 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--quarter`."""
    parser.addoption(
        "--quarter",
        action="store_true",
        help="of the slow tests that are not marked core, run only the quarter that HEAD's commit chooses",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Prints which quarter runs."""
    return f"slow tests: the quarter that commit {commit()[:9]} chooses" if config.option.quarter else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the other slow tests."""
    if not config.option.quarter:
        return
    rotating = [
        each for each in items if each.get_closest_marker("slow") and not each.get_closest_marker("core")
    ]
    left_out = {each for each in rotating if not is_chosen(each.nodeid, commit())}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [each for each in items if each not in left_out]
