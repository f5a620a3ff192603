"""Which cases of the catalogue a test run covers: a third, another one for each commit."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess

from tests.evaluators.catalogue import ROOT

VARIABLE = "IDEATREE_CATALOGUE"
"""`all` runs every case."""
PARTS = 3


def covers_all() -> bool:
    return os.environ.get(VARIABLE, "") == "all"


@functools.cache
def commit() -> str:
    """The checked-out commit; "" outside a git repository, where every run covers the same third."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def is_chosen(case: str, at: str | None = None) -> bool:
    """Whether a run at this commit (None: the present one) covers the case."""
    digest = hashlib.sha256(f"{commit() if at is None else at} {case}".encode()).digest()
    return digest[0] % PARTS == 0
