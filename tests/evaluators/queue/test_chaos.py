"""Workers that are killed and stopped, on a full disk with wrong clocks: nothing is lost, and each request
gets one verdict. And one worker with a real device."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluators.queue.queue_evaluator import QueueEvaluator
from evaluators.queue.queue_folder import QueueFolder
from evaluators.records.evaluation import Status
from evaluators.records.probe import ProbeStatus
from evaluators.records.problem import Kernel
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.kernels import HONEST, PROBLEM, SETTINGS, forward
from tests.evaluators.queue.queues import filled, request

ROOT = Path(__file__).parents[3]
EACH = 60
"""Requests of each of the two searches."""
LEASE_S = 1.5
PATIENCE_S = 60.0


class Workers:
    """Worker processes by name; all are killed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        call = [sys.executable, "-m", "tests.evaluators.queue.chaotic_worker", self._folder, name, LEASE_S]
        with (self._folder / f"{name}.err").open("wb") as errors:
            self.running[name] = subprocess.Popen(list(map(str, call)), cwd=ROOT, stderr=errors)

    def signal(self, name: str, number: int) -> None:
        self.running[name].send_signal(number)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    found = Workers(tmp_path)
    yield found
    for each in found.running.values():
        each.kill()
        each.wait()


def confuse_clocks(folder: QueueFolder) -> None:
    """Gives files times of other years."""
    for room in (folder.leases, *folder.requests.iterdir()):
        for each in list(room.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                os.utime(each, (random.randrange(2**31), random.randrange(2**31)))


@pytest.mark.slow
def test_three_workers_under_chaos(tmp_path: Path, workers: Workers) -> None:
    asked = [request(f"{search} {n}", search=search) for search in ("one", "two") for n in range(EACH)]
    folder = filled(tmp_path, asked)
    for name in "abc":
        workers.start(name)
    acts = {
        10: lambda: workers.signal("a", signal.SIGSTOP),  # longer than its leases
        20: lambda: workers.signal("b", signal.SIGKILL),
        21: lambda: workers.start("d"),
        70: lambda: workers.signal("a", signal.SIGCONT),
    }
    shares = {"one": 0, "two": 0}
    deadline, done = time.monotonic() + PATIENCE_S, 0
    while done < 2 * EACH and time.monotonic() < deadline:
        confuse_clocks(folder)
        counts = {search: len(folder.answered(search)) for search in ("one", "two")}
        done = sum(counts.values())
        if done <= 1.7 * EACH:
            shares = counts
        for at in [each for each in acts if each <= done]:
            acts.pop(at)()
        time.sleep(0.02)
    for name in "acd":
        workers.signal(name, signal.SIGTERM)
    for name in "acd":
        assert workers.running[name].wait(20) == 0, (tmp_path / f"{name}.err").read_text()
    assert {each.id for each in asked} == folder.answered("one") | folder.answered("two")
    for each in asked:
        (found,) = folder.verdict(each).evaluations
        assert (found.status, found.log) == (Status.CORRECT, each.kernels[0].id)
    assert folder.pending() == []
    assert shares["one"] == pytest.approx(shares["two"], rel=0.1), shares
    measured = Counter(line for log in tmp_path.glob("*.log") for line in log.read_text().split())
    again = sum(measured.values()) - 2 * EACH
    assert again <= 2 * 2 + 2, "only what a killed or a stopped worker had begun is measured again"


@pytest.mark.slow
def test_a_worker_with_a_real_device_ends_cleanly(tmp_path: Path, marked: Marked) -> None:
    """It judges as a pool does, and leaves what it has begun when it is told to end."""
    evaluator = QueueEvaluator(settings=SETTINGS, path=str(tmp_path), look_every_s=0.05).for_search("one")
    call = [sys.executable, "-m", "evaluators.serve", f"folder={tmp_path}", "device=cpu"]
    worker = subprocess.Popen(call, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def real(source: str) -> Kernel:
        return Kernel(source=source, language="cpp")

    async def judged() -> None:
        facts = await evaluator.describe(PROBLEM)
        assert {"device", "torch", "isolation"} <= set(facts)
        sources = (HONEST, forward("return x"))
        found = await asyncio.gather(*(evaluator.evaluate(PROBLEM, real(each)) for each in sources))
        assert [each.status for each in found] == [Status.CORRECT, Status.INCORRECT]
        again = await evaluator.evaluate_beside(PROBLEM, real(f"{HONEST}\n# again"), [real(HONEST)])
        (paired,) = again.paired
        assert paired.over == real(HONEST).id and paired.low <= paired.speedup <= paired.high
        probe = await evaluator.probe(PROBLEM, real(forward("return x")))
        assert probe.status is ProbeStatus.TIMED and probe.times is not None
        diagnosis = await evaluator.diagnose(PROBLEM, real(HONEST), found[0], level="trace")
        assert "trace" in diagnosis.reached, diagnosis.missing
        slow = real("import time\ntime.sleep(100)\n" + HONEST)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(evaluator.evaluate(PROBLEM, slow), 2.0)

    try:
        asyncio.run(asyncio.wait_for(judged(), PATIENCE_S))
        worker.terminate()
        _, said = worker.communicate(timeout=20)
    finally:
        worker.kill()
    assert worker.returncode == 0 and "stored 6 verdicts" in said, said
    assert len(QueueFolder(tmp_path).pending()) == 1
    assert gone(marked), marked()
