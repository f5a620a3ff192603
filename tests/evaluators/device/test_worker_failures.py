"""Kernels that raise, die, hang or use too much, and the honest one after them."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace

import pytest

from evaluators.device.worker import Worker
from evaluators.records.evaluation import Status
from tests.evaluators.conftest import Marked, burning, gone
from tests.evaluators.device.kernels import HONEST, SETTINGS, Judge, assert_honest_is_correct, forward

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        (forward("raise ValueError('seven')"), Status.RUNTIME_ERROR, "ValueError: seven"),
        (forward("raise ValueError('x' * 10**6)"), Status.RUNTIME_ERROR, "[…]"),
        (forward("raise ValueError('\\ud800')"), Status.RUNTIME_ERROR, "ValueError"),
        (forward("raise SystemExit(0)"), Status.RUNTIME_ERROR, "SystemExit"),
        (forward("raise KeyboardInterrupt"), Status.RUNTIME_ERROR, "KeyboardInterrupt"),
        (forward("return torch.empty(10**14)"), Status.RUNTIME_ERROR, "memory"),
        (forward("return forward(self, x)"), Status.RUNTIME_ERROR, "RecursionError"),
        ("raise ImportError('seven')", Status.RUNTIME_ERROR, "ImportError: seven"),
        ("x = 1", Status.RUNTIME_ERROR, "no class ModelNew"),
        ("class ModelNew: ...", Status.RUNTIME_ERROR, "TypeError"),
    ],
    ids=lambda value: None if isinstance(value, Status) else str(value)[-40:],
)
def test_exceptions_reach_the_log(judge: Judge, source: str, status: Status, words: str) -> None:
    found = judge(source)
    assert found.status is status
    assert words in found.log
    assert len(found.log) <= 8000
    found.log.encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "it died of SIG"),
        ("os._exit(0)", "it exited with status 0"),
        ("os._exit(7)", "it exited with status 7"),
        ("os._exit(255)", "it exited with status 255"),
        ("os.close(3)\nreturn honest(self, x)", ""),
    ],
)
@pytest.mark.parametrize("when", ["at import", "in a call"])
def test_a_death_is_noticed_long_before_the_deadline(judge: Judge, body: str, words: str, when: str) -> None:
    said = "print('last words at', time.time(), flush=True)\n"
    if when == "at import":
        source = HONEST + said + body.replace("return honest(self, x)", "")
    else:
        source = forward(said + body)
    found = judge(source)
    now = time.time()
    assert found.status is Status.CRASHED, found
    assert words in found.log
    died = re.search(r"last words at ([\d.]+)", found.log)
    assert died is not None
    assert now - float(died[1]) < SETTINGS.timeout_s / 2


def test_a_call_that_never_ends(judge: Judge, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_settings", replace(SETTINGS, timeout_s=3.0))
        found = judge(forward("print('last words', flush=True)\ntime.sleep(600)"))
    assert found.status is Status.TIMEOUT
    assert "no verdict within 3 s" in found.log
    assert "last words" in found.log


SPINNING_THREADS = """
import threading
def spin():
    while True: pass
for _ in range(8):
    threading.Thread(target=spin).start()
time.sleep(600)
"""


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        pytest.param("time.sleep(600)", marks=pytest.mark.exhaustive),
        pytest.param(SPINNING_THREADS, marks=pytest.mark.exhaustive),
    ],
)
def test_a_kernel_that_hangs_times_out_on_a_busy_machine_too(
    judge: Judge, worker: Worker, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    with monkeypatch.context() as patch, burning(2 * len(os.sched_getaffinity(0))):
        patch.setattr(worker, "_settings", replace(SETTINGS, timeout_s=1.5))
        found = judge(forward(body))
    assert found.status is Status.TIMEOUT, found
    assert found.log.startswith("no verdict within 1.5 s")
    assert_honest_is_correct(judge)


def test_too_much_memory(judge: Judge) -> None:
    found = judge(forward("self.held = torch.ones(2**29)\ntime.sleep(600)"))
    assert found.status is Status.CRASHED
    assert "more than 1.5 GB of memory" in found.log


def test_too_many_processes(judge: Judge, marked: Marked) -> None:
    body = "import subprocess\nwhile True:\n    subprocess.Popen(['/bin/sleep', '599.5'])"
    found = judge(forward(body))
    assert found.status is Status.CRASHED
    assert "more than 256 processes" in found.log
    assert gone(lambda: [each for each in marked() if "599.5" in each])


def test_output_in_masses_is_no_burden(judge: Judge) -> None:
    noise = "for _ in range(2000):\n    print('x' * 20000)\n    sys.stderr.write('y' * 1000)\n"
    found = judge(HONEST + noise)
    assert found.status is Status.CORRECT, found.log
    found = judge(HONEST + noise + "sys.stdout.flush()\nos._exit(1)")
    assert found.status is Status.CRASHED
    assert len(found.log) < 8000
