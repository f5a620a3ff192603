"""Diagnoses and probes through a queue: what is found about a kernel without judging it."""

from __future__ import annotations

import asyncio
import json
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.device.settings import Settings
from evaluators.profiling.profiler import KernelProfiler, ProfileFailed
from evaluators.queue.archive import pack, packed
from evaluators.queue.queue_evaluator import QueueEvaluator
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.requests import (
    BadRequest,
    DeviceRequest,
    Operation,
    UnknownOperation,
    WantedProfile,
)
from evaluators.queue.serving import QueueWorker
from evaluators.queue.verdicts import BadVerdict, DeviceVerdict
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.probe import ProbeStatus
from evaluators.records.problem import Kernel
from evaluators.scheduler.pool import Pool
from tests.evaluators.queue.queues import IDENTITY, filled, request, served, source, verdict_on
from tests.evaluators.scheduler.fake_host import CORRECT, ON_GPU, TIMED, FakeHost, break_down, kernel

STATIC = WantedProfile(level="static", call_ms=1.0)


class FakeProfiler(KernelProfiler):
    """Has a diagnosis of every kernel, or does what it is told to."""

    def __init__(self, act: Callable[[], Any] = lambda: None) -> None:
        super().__init__(Settings())
        self._act = act
        self.profiled: list[tuple[str, Any]] = []

    def profile(self, problem: Any, kernel: Kernel, **how: Any) -> Diagnosis:
        self.profiled.append((kernel.id, how))
        self._act()
        return Diagnosis(reached=("static",), isolation="limits", occupancy=f"that of {kernel.id}")

    def waits(self) -> None:
        while not self._stopping.is_set():
            time.sleep(0.001)
        raise ProfileFailed("the profiled kernel was stopped")


def fail(error: Exception) -> Callable[[], Any]:
    def act() -> None:
        raise error

    return act


def examined(folder: Path, ask: Callable[[QueueEvaluator], Any], profiler: KernelProfiler, host: Any) -> Any:
    """What a search gets from a worker that serves until it has it."""

    async def both() -> Any:
        evaluator = QueueEvaluator(settings=Settings(), path=str(folder), look_every_s=0.01).for_search("one")
        worker = QueueWorker(
            source(QueueFolder(folder)),
            IDENTITY,
            lambda settings: Pool(host),
            at_once=4,
            look_every_s=0.01,
            make_profiler=lambda settings, device: profiler,
        )
        serving = asyncio.create_task(worker.run())
        found = await ask(evaluator)
        worker.stop()
        await serving
        return found

    return asyncio.run(both())


def test_a_search_gets_diagnoses_and_probes_while_its_kernels_are_judged(tmp_path: Path) -> None:
    """Nothing is measured on a device that is profiling."""
    host = FakeHost(work_s=0.01)
    profiler = FakeProfiler(lambda: measured.append(host.now["measure"]))
    measured: list[int] = []

    async def ask(evaluator: QueueEvaluator) -> Any:
        return await asyncio.gather(
            *(evaluator.evaluate(ON_GPU, kernel(n)) for n in range(4)),
            *(evaluator.diagnose(ON_GPU, kernel(n), CORRECT, level="trace") for n in range(2)),
            evaluator.probe(ON_GPU, kernel("probe")),
        )

    found = examined(tmp_path, ask, profiler, host)
    assert [each.occupancy for each in found[4:6]] == [f"that of {kernel(n).id}" for n in range(2)]
    assert replace(found[6], build_s=0.0, lease=None) == TIMED and found[6].build_s and found[6].lease
    assert measured == [0, 0]
    assert dict(profiler.profiled) == {
        kernel(n).id: {"wanted": "trace", "roofline": None, "call_ms": 1.0} for n in range(2)
    }
    answered = [*(tmp_path / "verdicts/one").iterdir()]
    for each in map(DeviceVerdict.read, (file.read_text() for file in answered)):
        assert (each.worker, each.device) == (IDENTITY.worker, "fake")
        assert each.diagnosis is None or each.isolation


@pytest.mark.parametrize(
    ("error", "tries"), [(ProfileFailed("it hangs"), 1), (OSError("no GPU answers\nat all"), 3)]
)
def test_a_kernel_that_cannot_be_profiled_has_a_diagnosis_that_says_so(
    tmp_path: Path, error: Exception, tries: int
) -> None:
    """Other workers try where the fault may be the machine's."""
    profiler = FakeProfiler(fail(error))

    async def ask(evaluator: QueueEvaluator) -> Diagnosis:
        return await evaluator.diagnose(ON_GPU, kernel(), CORRECT, level="static")

    found = examined(tmp_path, ask, profiler, FakeHost())
    assert not found.reached and found.missing["profile"].startswith(str(error).splitlines()[0])
    assert len(profiler.profiled) == tries


def test_a_worker_that_ends_in_a_profile_leaves_it_to_others(tmp_path: Path) -> None:
    asked = request(operation=Operation.DIAGNOSE, profile=STATIC)
    folder = filled(tmp_path, [replace(asked, cost_s=0.01)])
    profiler = FakeProfiler()
    profiler._act = profiler.waits
    first = served(source(folder), FakeHost(), seconds=0.1, make_profiler=lambda *_: profiler)
    assert profiler.profiled and not first.answered and len(folder.pending()) == 1
    second = served(source(folder, worker="next"), FakeHost(), make_profiler=lambda *_: FakeProfiler())
    assert second.answered == 1 and not folder.pending()


@pytest.mark.parametrize(("breakdowns", "status"), [(8, ProbeStatus.TIMED), (9, "infrastructure_error")])
def test_a_probe_that_a_machine_disturbs_is_timed_by_another(
    tmp_path: Path, breakdowns: int, status: ProbeStatus
) -> None:
    asked = request(operation=Operation.PROBE)
    folder, host = filled(tmp_path, [asked]), FakeHost()
    host.measuring = [break_down] * breakdowns
    served(source(folder), host)
    found = folder.verdict(asked).probe
    assert found is not None and found.status == status
    assert host.measuring == []


def test_workers_leave_operations_that_they_do_not_know(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = request()
    folder = filled(tmp_path / "queue", [known, request("b")])
    strange = (tmp_path / "queue/requests/one").joinpath(f"{'f' * 12}.json")
    strange.write_text(json.dumps({**request("c").to_json(), "operation": "tune", "goal": 3}))
    with pytest.raises(UnknownOperation, match="asks for 'tune', which this version cannot do"):
        DeviceRequest.read(strange.read_text(), "f" * 12)
    assert served(source(folder), FakeHost()).answered == 2
    assert [each.id for each in folder.pending()] == ["f" * 12]
    archive = tmp_path / "in.tar"
    pack([known], archive)
    with tarfile.open(archive, "a") as file:
        file.add(strange, strange.name)
    assert [each.id for each in packed(archive)] == [known.id]
    assert "it is left to others" in caplog.text


def test_older_workers_can_read_what_they_know() -> None:
    """A request has no key that it did not have before there were diagnoses and companions."""
    assert not {"profile", "companions"} & set(json.loads(request().text))
    for more in ({"operation": Operation.DIAGNOSE, "profile": STATIC}, {"companions": [kernel("seed")]}):
        asked = request(**more)
        assert DeviceRequest.read(asked.text, asked.id) == asked


def test_a_kernel_is_timed_with_its_companions_in_the_same_request(tmp_path: Path) -> None:
    host = SamplingHost()

    async def ask(evaluator: QueueEvaluator) -> Any:
        return await asyncio.gather(
            *(evaluator.evaluate_beside(ON_GPU, kernel(name), [kernel("seed")]) for name in ("a", "seed"))
        )

    found, itself = examined(tmp_path, ask, FakeProfiler(), host)
    (paired,) = found.paired
    assert paired.over == kernel("seed").id and paired.speedup == pytest.approx(2.0)
    assert paired.low <= paired.speedup <= paired.high
    assert host.compared == [(kernel("a").id, kernel("seed").id)]
    assert found.device_s == pytest.approx(3 * CORRECT.device_s) and itself.device_s == CORRECT.device_s
    assert found.stages_s["comparing"] == pytest.approx(2 * CORRECT.device_s)
    assert itself.paired == () and len([*(tmp_path / "verdicts/one").iterdir()]) == 2


@pytest.mark.parametrize("lost", [break_down, lambda: None])
def test_a_session_that_fails_costs_no_verdict(tmp_path: Path, lost: Callable[[], Any]) -> None:
    """Nor does one with too few samples."""
    host = FakeHost()
    host.measuring = [lambda: CORRECT, lost, lost, lost]

    async def ask(evaluator: QueueEvaluator) -> Any:
        return await evaluator.evaluate_beside(ON_GPU, kernel(), [kernel("seed")])

    found = examined(tmp_path, ask, FakeProfiler(), host)
    assert (found.status, found.paired) == (Status.CORRECT, ())


class SamplingHost(FakeHost):
    """In its sessions, each kernel takes twice as long as the one before."""

    async def compare(self, device: int, problem: Any, kernels: Any, *rest: Any) -> list[Evaluation]:
        found = await super().compare(device, problem, kernels, *rest)
        assert CORRECT.timing is not None
        samples = [(2.0**number,) * 8 for number in range(len(found))]
        timings = [replace(CORRECT.timing, kernel_samples_ms=each) for each in samples]
        return [replace(each, timing=own) for each, own in zip(found, timings, strict=True)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"operation": "diagnose"}, "needs a profile"),
        ({"operation": "evaluate", "profile": {"level": "static"}}, "nothing else does"),
        ({"operation": "diagnose", "profile": {"level": "deep"}}, "profile.level is 'deep'"),
        ({"operation": "thorough", "companions": [{"source": "x", "language": "cpp"}]}, "companions"),
        ({"operation": "probe", "kernels": []}, "probe needs one kernel, not 0"),
        ({"operation": "probe", "problem": {**ON_GPU.to_json(), "timed": False}}, "is not timed"),
    ],
)
def test_a_request_that_would_break_a_worker_is_none(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        DeviceRequest.read(json.dumps({**request().to_json(), **changes}), "x")


def test_a_verdict_without_what_was_asked_for_is_refused(tmp_path: Path) -> None:
    for operation, more, says in (
        (Operation.DIAGNOSE, {"profile": STATIC}, "has no diagnosis"),
        (Operation.PROBE, {}, "has no result"),
    ):
        asked = request(operation=operation, **more)
        folder = filled(tmp_path, [asked])
        folder.answer("one", replace(verdict_on(asked), evaluations=()))
        with pytest.raises(BadVerdict, match=says):
            folder.verdict(asked)
