"""A small run of `benchmarks/chaos.py` on the CPU: every kind of failure once, including our own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_failure_in_one_queue() -> None:
    options = (
        "--device cpu --pool local --candidates 32 --honest 6 "
        "--timeout 3 --known-within 4 --kills 3 --kill-every 6"
    )
    done = subprocess.run(
        [sys.executable, "benchmarks/chaos.py", *options.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every check holds" in done.stdout
    killed = next(line for line in done.stdout.splitlines() if line.startswith("killed:"))
    assert any(name in killed for name in ("node's fork server", "fork server", "judge process"))
