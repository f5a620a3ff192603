"""Workers with real processes, and their verdicts on kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluators.device.worker import Worker
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.kernels import HONEST, PROBLEM, SETTINGS, Judge


@pytest.fixture(scope="module")
def worker(marked: Marked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """After all of a module's kernels, an honest one is correct, with the same processes."""
    started = Worker(root=tmp_path_factory.mktemp("root"), settings=SETTINGS)
    try:
        yield started
        processes = started._device_processes
        assert processes is not None and processes._judge.poll() is None
        found = started.measure(PROBLEM, Kernel(source=HONEST, language="cpp"), b"")
        assert found.status is Status.CORRECT, found.log
        assert started._device_processes is processes
    finally:
        started.close()
    assert gone(marked), marked()


@pytest.fixture
def judge(worker: Worker) -> Judge:
    def measure(source: str, problem: Problem = PROBLEM) -> Evaluation:
        return worker.measure(problem, Kernel(source=source, language="cpp"), b"")

    return measure


@pytest.fixture(scope="module")
def second(marked: Marked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker that tests may break, so that the first keeps its processes."""
    started = Worker(root=tmp_path_factory.mktemp("second"), settings=SETTINGS)
    yield started
    started.close()
