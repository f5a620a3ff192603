"""Several kernels in one session: the fastest is identified, and a kernel that fails harms no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from evaluators.device.worker import Worker
from evaluators.judge.head_to_head import HeadToHead
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.opening import Steps
from evaluators.records.problem import Kernel
from evaluators.records.timing import Effort, Plan, paired_speedup
from evaluators.records.verdict import Verdict
from evaluators.system.channel import Channel, ChannelClosed
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.kernels import HONEST, PROBLEM, SETTINGS, forward

pytestmark = pytest.mark.slow

SLOW = forward("for _ in range(11):\n    honest(self, x)\nreturn honest(self, x)")
COUNT = "import itertools\ncount = itertools.count()"


def later(body: str) -> str:
    """The honest kernel, which changes its behaviour at its thirtieth call, when it is timed."""
    return forward(f"if next(count) > 30:\n    {body}\nreturn honest(self, x)", before=COUNT)


FAILURES = {
    "wrong": (forward("return x"), Status.INCORRECT, "instead of"),
    "raises": (forward("raise ValueError('seven')"), Status.RUNTIME_ERROR, "seven"),
    "wrong later": (later("return x"), Status.INCORRECT, "instead of"),
    "dies": (forward("os.kill(os.getpid(), 9)"), Status.CRASHED, "SIGKILL"),
    "dies later": (later("os.kill(os.getpid(), 9)"), Status.CRASHED, "SIGKILL"),
    "hangs": (later("time.sleep(600)"), Status.TIMEOUT, "no verdict within"),
    "works in some calls": (
        forward("time.sleep(0.3 * (next(count) % 3 == 0)); return honest(self, x)", before=COUNT),
        Status.REJECTED,
        "uneven",
    ),
}


@pytest.fixture(scope="module")
def worker(marked: Marked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    plan = Plan(block_ms=8.0, precision=0.1, max_s=1.0)
    settings = replace(SETTINGS, plan=plan, thorough_plan=plan, thorough_timeout_s=60.0)
    started = Worker(root=tmp_path_factory.mktemp("root"), settings=settings)
    yield started
    started.close()
    assert gone(marked), marked()


def compared(worker: Worker, *sources: str, effort: Effort = Effort.USUAL) -> list[Evaluation]:
    kernels = [Kernel(source=each, language="cpp") for each in sources]
    return worker.compare(PROBLEM, kernels, [b""] * len(kernels), effort=effort)


def samples(found: Evaluation) -> tuple[float, ...]:
    assert found.timing is not None, found.log
    return found.timing.kernel_samples_ms


def test_the_faster_kernel_is_identified(worker: Worker) -> None:
    told = []
    for _ in range(3):  # other work on the machine may widen an interval
        slow, fast = compared(worker, SLOW, HONEST, effort=Effort.THOROUGH)
        ratio, low, _ = paired_speedup(samples(fast), samples(slow))
        told.append((ratio, low))
        if low > 1.0 and 2 < ratio < 25:
            break
    else:
        raise AssertionError(f"times as fast, and at least: {told}")
    assert fast.timing is not None
    assert slow.timing is not None
    assert fast.timing.eager_samples_ms == slow.timing.eager_samples_ms
    assert len(fast.timing.eager_samples_ms) == len(samples(fast)) == len(samples(slow)) >= 6
    for each in (fast, slow):
        assert each.status is Status.CORRECT
        assert each.correctness is not None
        assert each.correctness.checked_calls > 7
        assert each.device_s > 0
        assert each.environment["device"]


@pytest.mark.parametrize("case", FAILURES)
def test_a_kernel_that_fails_does_not_disturb_the_others(worker: Worker, case: str) -> None:
    source, status, words = FAILURES[case]
    first, failed, last = compared(worker, HONEST, source, f"{HONEST}\n# another")
    assert (failed.status, failed.timing) == (status, None), failed.log
    assert words in failed.log
    assert first.status is last.status is Status.CORRECT, first.log + last.log
    assert len(samples(first)) == len(samples(last)) >= 6


def test_a_quick_comparison_checks_the_problems_own_inputs_only(worker: Worker) -> None:
    found, wrong = compared(worker, HONEST, FAILURES["wrong"][0], effort=Effort.QUICK)
    assert found.correctness is not None and not found.correctness.distributions
    assert len(samples(found)) >= 6
    assert wrong.status is Status.INCORRECT


def test_all_may_fail(worker: Worker) -> None:
    found = compared(worker, FAILURES["wrong"][0], FAILURES["raises"][0])
    assert [each.status for each in found] == [Status.INCORRECT, Status.RUNTIME_ERROR]


@pytest.mark.parametrize(("room", "compared"), [(1, 0), (3, 3), (4, 4)])
def test_only_kernels_that_fit_the_device_are_compared(room: int, compared: int) -> None:
    ours, theirs = zip(*(Channel.pair() for _ in range(4)), strict=True)
    for each in theirs:
        each.send({"op": "confined"})
    made: list[Any] = []

    @contextmanager
    def buffer_sets(count: int) -> Iterator[list[Any]]:
        yield [object() for _ in range(count)]

    session: Any = SimpleNamespace(
        clock=Steps(),
        memory=SimpleNamespace(most_candidates=lambda whole, wanted: min(room, wanted)),
        buffer_sets=buffer_sets,
        candidate=lambda channel, pid, buffers: made.append(channel),
        reference=SimpleNamespace(random_checks=None, weight_forms=[]),
        eager_calls=lambda plan: 4,
        capacity=8,
        device="cuda",
    )
    head_to_head = HeadToHead(session, list(ours), [1, 2, 3, 4], SETTINGS.plan, Effort.USUAL)
    assert made == list(ours[:compared])
    assert len(head_to_head.alive) == compared
    for each in theirs[compared:]:  # whose runners may end
        with pytest.raises(ChannelClosed):
            each.receive(1.0)
    for entry in head_to_head.alive:
        entry.verdict = Verdict(status=Status.INCORRECT, log="wrong")
    found = head_to_head.verdicts()
    assert [each.status for each in found[:compared]] == [Status.INCORRECT] * compared
    assert {each.log for each in found[compared:]} <= {
        f"the device's memory has room for {room} of these kernels at once"
    }
    assert {each.status for each in found[compared:]} <= {Status.INFRASTRUCTURE_ERROR}
    assert len(found) == 4
    if not compared:
        assert list(head_to_head.steps) == []


def test_afterwards_a_kernel_is_judged_as_ever(worker: Worker) -> None:
    found = worker.measure(PROBLEM, Kernel(source=HONEST, language="cpp"), b"")
    assert found.status is Status.CORRECT, found.log
    assert [path for path in worker._root.iterdir() if path.name.startswith("prefork")] == [
        worker._open.in_use.prefork._folder
    ]
