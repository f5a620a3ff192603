"""A mark on the evaluator's processes, by which a test finds those that are left over."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluators.build.build_cache import BuildCache
from evaluators.reference.cost.machine_peaks import MachinePeaks

MARK = "CUDAHOSTCXX"
"""One of the few variables that cross into the evaluator's processes; nothing reads it on a CPU."""

H200 = MachinePeaks(
    device="cuda",
    bytes_per_s=4.3e12,
    cache_bytes=60 * 2**20,
    operations_per_s={"float32": 50e12, "tf32": 400e12, "bfloat16": 790e12, "float64": 60e12},
)

Marked = Callable[[], list[str]]

LEVELS = [
    pytest.param(True, id="namespaces"),
    pytest.param(False, id="no namespaces"),
]
"""For tests that must pass with and without namespaces."""


@pytest.fixture(scope="session")
def build_cache(run_folder: Path) -> BuildCache:
    """Builds that all processes of this test run share."""
    return BuildCache(folder=run_folder / "builds")


def processes_with(mark: str) -> list[str]:
    """The command lines of all living processes with the mark, in any namespace."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(f"{entry}: {Path(f'/proc/{entry}/cmdline').read_bytes()!r}")
    return found


def gone(look: Marked, within_s: float = 30.0) -> bool:
    """Whether nothing is left after a while: the kernel takes a moment to reap the dead."""
    deadline = time.monotonic() + within_s
    while look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


BURN = "while True: pass"


@contextlib.contextmanager
def burning(count: int) -> Iterator[list[int]]:
    """`count` processes that use all the CPU time they get; yields their ids. Each has a separate session,
    because Linux shares cores among sessions."""
    command = [sys.executable, "-c", BURN]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def marked() -> Iterator[Marked]:
    """Marks the processes that the module's tests start; the function returns those that live."""
    mark = f"ideatree-test-{secrets.token_hex(8)}"
    patch = pytest.MonkeyPatch()
    patch.setenv(MARK, mark)
    yield lambda: processes_with(mark)
    patch.undo()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path
