"""Probes with real processes: they get a time whatever they return, and are ended like any kernel. After all
of them, an honest kernel is correct with the same processes (see `conftest.worker`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from evaluators.device.worker import Worker
from evaluators.records.probe import Probe, ProbeStatus
from evaluators.records.problem import Kernel
from tests.evaluators.device.kernels import HONEST, PROBLEM, SETTINGS, forward

pytestmark = pytest.mark.slow

Prober = Callable[[str], Probe]


@pytest.fixture
def probe(worker: Worker) -> Prober:
    return lambda source: worker.probe(PROBLEM, Kernel(source=source, language="cpp"), b"")


@pytest.mark.parametrize("result", ["None", "x + 1", "'text'", "[x[:0], {'a': x}]", "honest(self, x)"])
def test_any_output_is_accepted_and_none_is_judged(probe: Prober, result: str) -> None:
    found = probe(forward(f"return {result}"))
    assert found.status is ProbeStatus.TIMED, found
    assert found.times is not None and found.device_s > 0 and not found.log


TRACED = """now = time.perf_counter_ns
times = [[now(), 0, 0, 0]]
for mark, s in enumerate((0.002, 0.001)):
    time.sleep(s)
    times[0][mark + 1] = now()
"""


def test_a_trace_becomes_a_timeline(probe: Prober) -> None:
    marks = 'PROBE_MARKS = ["wait", "work", "never"]\nPROBE_UNIT = "ns"\n'
    found = probe(forward(f"{TRACED}return x, torch.tensor(times)", before=marks))
    assert found.trace is not None, found
    wait, work = found.trace.phases[:2]
    assert (wait.name, wait.start) == ("wait", 0)
    assert wait.length is not None and work.length is not None
    assert wait.length >= 2e6 and work.length >= 1e6
    assert work.start == wait.length
    many = probe(forward("return torch.ones(9999, 3, dtype=torch.int64)", before=marks))
    assert many.trace is not None and many.trace.workers == 9999
    bare = probe(forward("return x", before=marks))
    assert bare.status is ProbeStatus.TIMED and "no int64 tensor of shape (workers, 3)" in bare.log


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("import nothing_of_this_name", ProbeStatus.RUNTIME_ERROR),
        (forward("raise ValueError('no')"), ProbeStatus.RUNTIME_ERROR),
        (forward("os.kill(os.getpid(), 11)"), ProbeStatus.CRASHED),
        (forward("while True: pass"), ProbeStatus.TIMEOUT),
        (forward("self.much = bytearray(3 * 2**30); time.sleep(9)"), ProbeStatus.CRASHED),
        (f"{HONEST}\nos.write(3, b'garbage\\n')\n", ProbeStatus.REJECTED),
        (
            f"""{HONEST}\nos.write(3, b'{{"op": "failed", "phase": "output", "error": "no"}}\\n')\n""",
            ProbeStatus.REJECTED,
        ),
    ],
    ids=["import", "raises", "dies", "hangs", "memory", "garbage", "forged"],
)
def test_a_probe_ends_like_any_kernel(
    probe: Prober, worker: Worker, monkeypatch: pytest.MonkeyPatch, source: str, status: ProbeStatus
) -> None:
    monkeypatch.setattr(worker, "_settings", replace(SETTINGS, timeout_s=5.0))
    found = probe(source)
    assert found.status is status, found
    assert found.cause
