"""Builds that hang, crash, forge answers, exceed limits or leave processes behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from evaluators.build import builder as build_module
from evaluators.records.evaluation import Status
from tests.evaluators.build.builds import built
from tests.evaluators.conftest import Marked, burning, gone

pytestmark = pytest.mark.usefixtures("one_fork_server")


@pytest.mark.slow
@pytest.mark.parametrize(
    "burners", [0, pytest.param(2 * len(os.sched_getaffinity(0)), marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("source", ["import time\ntime.sleep(600)", "while True: pass"])
def test_a_build_that_hangs(root: Path, source: str, burners: int) -> None:
    with burning(burners):
        done = built(source, root, timeout_s=1.5)
    assert done.status is Status.TIMEOUT
    assert done.log.startswith("the build did not end within 1.5 s")
    assert done.archive == b""


@pytest.mark.parametrize(
    "source",
    [
        "import os\nprint('last words', flush=True)\nos._exit(0)",
        "import ctypes\nprint('last words', flush=True)\nctypes.string_at(0)",
        "import os\nprint('last words', flush=True)\nos.close(3)\nimport time; time.sleep(0.2)",
    ],
    ids=["exits", "faults", "closes its channel"],
)
def test_a_build_that_dies(root: Path, source: str) -> None:
    done = built(source, root)
    assert done.status is Status.CRASHED
    assert "last words" in done.log


@pytest.mark.parametrize(
    "message",
    [
        b"{}",
        b'{"op": "failed"}',
        b'{"op": "failed", "status": "correct"}',
        b'{"op": "failed", "status": "rejected"}',
        b'{"op": "failed", "status": "infrastructure_error"}',
        b'{"op": "failed", "status": 7, "error": [1]}',
        b'{"op": ["imported"]}',
        b'{"op": "failed", "error": "\\ud800"}',
        b"garbage",
        b"[]",
        b"\x80\x04\x95",
        b"[" * 100_000,
    ],
    ids=lambda message: repr(message[:60]),
)
def test_a_forged_answer_is_the_kernels_fault(root: Path, message: bytes) -> None:
    done = built(f"import os, time\nos.write(3, {message!r} + b'\\n')\ntime.sleep(600)", root)
    assert done.status is Status.COMPILE_ERROR
    done.log.encode()


def test_a_forged_success_gains_nothing(root: Path) -> None:
    """The runner imports the kernel again, and only that counts."""
    source = """import os, time\nos.write(3, b'{"op": "imported"}\\n')\ntime.sleep(600)"""
    assert built(source, root).status is None


def test_a_daemon_of_a_build_does_not_outlive_it(root: Path, marked: Marked) -> None:
    built("pass", root)  # the fork server is up
    before = len(marked())
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)"
    assert built(daemon, root).status is None
    assert gone(lambda: marked()[before:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value", "source", "words"),
    [
        (
            "MAX_SCRATCH_BYTES",
            2**25,
            "for n in range(10**6): open(f'file{n}', 'wb').write(bytes(2**20))",
            "the build wrote more than 0.03125 GB of files",
        ),
        (
            "MAX_BUILD_PROCESSES",
            20,
            "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)",
            "processes; the limit is 20",
        ),
        (
            "MAX_MEMORY_BYTES",
            2**30,
            "import time\nx = b'x' * (3 * 2**29)\ntime.sleep(600)",
            "bytes of memory; the limit is 1,073,741,824",
        ),
    ],
    ids=["files", "processes", "memory"],
)
def test_a_build_that_takes_too_much(
    root: Path,
    marked: Marked,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    source: str,
    words: str,
) -> None:
    assert built("pass", root).status is None, "the fork server is up"
    before = len(marked())
    monkeypatch.setattr(build_module, limit, value)
    done = built(source, root)
    assert done.status is Status.CRASHED
    assert words in done.log
    assert gone(lambda: marked()[before:])
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_half_a_message_does_not_stop_the_watch(root: Path) -> None:
    done = built("import os, time\nos.write(3, b'{')\ntime.sleep(600)", root, timeout_s=1.5)
    assert done.status is Status.TIMEOUT


def test_after_the_fork_server_died_the_next_build_starts_another(root: Path) -> None:
    assert built("pass", root).status is None
    fork_server = build_module._thread_fork_server(root)
    os.kill(fork_server.pid, signal.SIGKILL)
    assert gone(lambda: [fork_server.pid] if fork_server.is_alive() else [])
    assert built("pass", root).status is None
