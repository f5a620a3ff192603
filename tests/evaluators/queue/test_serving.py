"""A worker: it answers once, leaves unfinished work to others, and blames no request for its machine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import UnfitProblem
from evaluators.device.settings import Settings
from evaluators.queue.archive import import_verdicts, pack, packed
from evaluators.queue.queue_evaluator import QueueEvaluator
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.requests import Operation
from evaluators.queue.serving import QueueWorker, WorkerAtFault
from evaluators.queue.sources import ArchiveSource
from evaluators.records.evaluation import Status
from evaluators.records.problem import Problem
from evaluators.scheduler.pool import Pool
from evaluators.serve.__main__ import main
from tests.evaluators.queue.queues import IDENTITY, filled, request, served, source, verdict_on
from tests.evaluators.scheduler.fake_host import ON_GPU, RESOURCES, FakeHost, break_down, kernel


def test_a_search_gets_every_kind_of_answer_through_the_folder(tmp_path: Path) -> None:
    async def both() -> None:
        evaluator = QueueEvaluator(settings=Settings(), path=str(tmp_path), look_every_s=0.01).for_search(
            "one"
        )
        folder = QueueFolder(tmp_path)
        worker = QueueWorker(
            source(folder), IDENTITY, lambda settings: Pool(FakeHost()), at_once=3, look_every_s=0.01
        )
        serving = asyncio.create_task(worker.run())
        facts = await evaluator.describe(ON_GPU)
        assert facts["device"] == "fake"
        stages: list[str] = []
        found = await asyncio.gather(
            evaluator.evaluate(ON_GPU, kernel("a"), on_stage=stages.append),
            evaluator.evaluate(ON_GPU, kernel("a"), thorough=True),
            evaluator.evaluate(ON_GPU, kernel("b")),
        )
        assert [each.log for each in found] == [
            f"{kernel(name).id} {effort}"
            for name, effort in (("a", "usual"), ("a", "thorough"), ("b", "usual"))
        ]
        assert {each.resources for each in found} == {RESOURCES}
        assert stages == ["waiting"]
        assert {each.lease.device for each in found if each.lease} == {f"{IDENTITY.worker}/0"}
        compared = await evaluator.compare(ON_GPU, [kernel("a"), kernel("b")])
        assert [each.log.split()[0] for each in compared] == [kernel("a").id, kernel("b").id]
        again = await evaluator.compare(ON_GPU, [kernel("b"), kernel("a")])
        assert len(again) == 2 and worker.answered == 6, "a second session is a new measurement"
        raced = [await evaluator.race(ON_GPU, kernel("c"), threshold=each) for each in (None, 0.0)]
        assert [each.status for each in raced] == [Status.OUTPACED, Status.CORRECT]
        worker.stop()
        await serving
        assert {folder.read(each).kind for each in folder.pending()} == set()

    asyncio.run(both())


def test_verdicts_that_arrive_later_are_found_and_recorded_ones_are_not_given_again(tmp_path: Path) -> None:
    def search(*answered: tuple[Operation, frozenset[str]]) -> QueueEvaluator:
        made = QueueEvaluator(settings=Settings(), path=str(tmp_path), look_every_s=0.01)
        return made.for_search("one", answered)

    async def killed() -> None:
        evaluator = search()
        asking = asyncio.create_task(evaluator.evaluate(ON_GPU, kernel()))
        while not evaluator.awaited():
            await asyncio.sleep(0)
        asking.cancel()

    asyncio.run(killed())
    host = FakeHost()
    served(source(QueueFolder(tmp_path)), host)
    assert asyncio.run(search().evaluate(ON_GPU, kernel())).log.startswith(kernel().id)
    assert host.measured[kernel().id] == 1
    recorded = (Operation.EVALUATE, frozenset([kernel().id]))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(search(recorded).evaluate(ON_GPU, kernel()), 0.05))
    assert len(QueueFolder(tmp_path).pending()) == 1
    search().withdraw()
    assert not QueueFolder(tmp_path).pending()


def test_a_verdict_of_another_kind_is_refused_and_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def asked() -> None:
        made = QueueEvaluator(settings=Settings(), path=str(tmp_path), device="fake", look_every_s=0.01)
        evaluator = made.for_search("one")
        folder = QueueFolder(tmp_path)
        asking = asyncio.create_task(evaluator.evaluate(ON_GPU, kernel()))
        while not (pending := folder.pending()):
            await asyncio.sleep(0.01)
        wanted = folder.read(pending[0])
        folder.answer("one", verdict_on(wanted, device="other"))
        while not folder.pending():
            await asyncio.sleep(0.01)
        folder.answer("one", verdict_on(wanted, log="right"))
        assert (await asking).log == "right"

    asyncio.run(asked())
    assert "comes from other; the search is pinned to fake" in caplog.text


def test_a_search_stays_with_the_device_that_it_has_recorded(tmp_path: Path) -> None:
    """It needs no worker to tell it."""

    async def ask(evaluator: QueueEvaluator) -> None:
        assert await evaluator.describe(ON_GPU) == {"device": "NVIDIA H200"}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(evaluator.evaluate(ON_GPU, kernel()), 0.02)

    made = QueueEvaluator(settings=Settings(), path=str(tmp_path))
    asyncio.run(ask(made.for_search("one", facts={"device": "NVIDIA H200"})))
    folder = QueueFolder(tmp_path)
    assert [folder.read(each).kind for each in folder.pending()] == ["NVIDIA H200"]
    other = QueueEvaluator(settings=Settings(), path=str(tmp_path), device="NVIDIA L4")
    with pytest.raises(UsageError, match="NVIDIA L4: the search was measured on NVIDIA H200"):
        other.for_search("one", facts={"device": "NVIDIA H200"})


@pytest.mark.parametrize(("breakdowns", "status"), [(8, Status.CORRECT), (9, Status.INFRASTRUCTURE_ERROR)])
def test_a_failure_is_a_verdict_only_after_three_tries(
    tmp_path: Path, breakdowns: int, status: Status
) -> None:
    """A pool tries three times, too."""
    asked = request()
    folder = filled(tmp_path, [asked])
    host = FakeHost()
    host.measuring = [break_down] * breakdowns
    served(source(folder), host)
    assert folder.verdict(asked).evaluations[0].status is status
    assert host.measured[kernel("a").id] == 9


def test_a_worker_that_fails_at_everything_ends(tmp_path: Path) -> None:
    folder = filled(tmp_path, [request(n) for n in range(5)])
    sick = FakeHost()
    sick.sick = {0}
    with pytest.raises(WorkerAtFault, match=r"3 requests in a row failed here.*the device is lost"):
        served(source(folder), sick)
    assert len(folder.pending()) == 5
    well = FakeHost()
    assert served(source(folder, worker="next"), well).answered == 5


def test_an_unfit_reference_is_a_verdict(tmp_path: Path) -> None:
    class Unfit(FakeHost):
        async def facts(self, device: int, problem: Problem) -> dict[str, str]:
            raise UnfitProblem("zeros would pass")

    async def describe() -> None:
        made = QueueEvaluator(settings=Settings(), path=str(tmp_path), look_every_s=0.01)
        with pytest.raises(UnfitProblem, match="zeros would pass"):
            await made.for_search("one").describe(ON_GPU)

    asked = request()
    opening = request(operation=Operation.DESCRIBE, kernels=[])
    folder = filled(tmp_path, [asked, opening])
    assert served(source(folder), Unfit()).answered == 2
    assert folder.verdict(asked).evaluations[0].status is Status.UNFIT_REFERENCE
    asyncio.run(describe())
    folder.submit(opening)
    assert [each.id for each in folder.pending()] == [opening.id], "a later call may ask again"


def test_at_its_deadline_a_worker_leaves_the_rest_at_once(tmp_path: Path) -> None:
    many = [replace(request(n), cost_s=0.01) for n in range(50)]
    folder = filled(tmp_path, many)
    first = served(source(folder), FakeHost(work_s=0.02), seconds=0.2, at_once=4)
    assert 0 < first.answered < 50
    assert len(folder.pending()) == 50 - first.answered
    assert served(source(folder, worker="next"), FakeHost()).answered == 50 - first.answered
    long = filled(tmp_path / "long", [request()])
    assert served(source(long), FakeHost(), seconds=0.1).answered == 0, "it would not end in time"


def test_other_settings_wait_until_the_devices_are_free(tmp_path: Path) -> None:
    other = replace(Settings(), timeout_s=7.0)
    folder = filled(tmp_path, [request(n, settings=(Settings(), other)[n % 2]) for n in range(6)])
    host, made = FakeHost(work_s=0.01), []

    async def serve() -> None:
        def make(settings: Settings) -> Pool:
            assert not host.now["measure"] and not host.now["build"]
            made.append(settings)
            return Pool(host)

        worker = QueueWorker(source(folder), IDENTITY, make, at_once=4, idle_s=0.05, look_every_s=0.01)
        await worker.run()
        assert worker.answered == 6

    asyncio.run(serve())
    assert {each.timeout_s for each in made} == {30.0, 7.0}


def test_an_archive_goes_there_and_back(tmp_path: Path) -> None:
    asked = [request(n, search=f"s{n % 2}") for n in range(4)]
    folder = filled(tmp_path / "queue", asked)
    archive, out = tmp_path / "in.tar", tmp_path / "out.jsonl"
    pack(asked, archive)
    host = FakeHost(work_s=0.05)
    first = served(ArchiveSource(packed(archive), out), host, seconds=30.0)
    assert first.answered == 4
    whole = out.read_text().splitlines()
    out.write_text("\n".join(whole[:2]) + "\n" + whole[2][:40])  # killed while it wrote
    assert served(ArchiveSource(packed(archive), out), FakeHost()).answered == 2
    foreign = verdict_on(request("elsewhere")).text
    lines = [*(json.loads(line) for line in out.read_text().splitlines() if line.endswith("}"))]
    lines[0]["evaluations"][0]["timing"]["speedup_high"] = 99.0
    altered = lines[0]["request"]
    out.write_text("\n".join([*map(json.dumps, lines), foreign, json.dumps(lines[1])]) + "\n")
    found = import_verdicts(folder, out)
    assert (found.stored, found.already) == (3, 1)
    assert len(found.refused) == 2 and f"request {altered} was altered" in found.refused[0]
    assert "is foreign" in found.refused[1]
    assert [each.id for each in folder.pending()] == [altered]


def test_what_does_not_fit_into_the_time_is_left_out_of_an_archive(tmp_path: Path) -> None:
    dear, cheap = replace(request("dear"), cost_s=100.0), request("cheap")
    out = tmp_path / "out.jsonl"
    assert served(ArchiveSource([dear, cheap], out), FakeHost(), seconds=30.0).answered == 1
    assert json.loads(out.read_text())["request"] == cheap.id


@pytest.mark.slow
def test_the_worker_imports_neither_ray_nor_hydra_nor_wandb(tmp_path: Path) -> None:
    blocked = (
        "import sys\n"
        "for name in ('ray', 'hydra', 'omegaconf', 'wandb', 'rich', 'openai'): sys.modules[name] = None\n"
        "from evaluators.serve.__main__ import main\n"
        f"sys.exit(main(['folder={tmp_path}', 'device=cpu', 'idle=0.1']))\n"
    )
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stored 0 verdicts" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "folder=… or archive=…"),
        (["folder=x", "archive=y", "out=z"], "not both"),
        (["archive=y"], "belong together"),
        (["foldr=x"], "unknown argument foldr=x; did you mean folder"),
        (["folder=x", "seconds=soon"], "seconds is soon"),
        (["folder=x", "seconds=-1"], "seconds is -1"),
        (["folder=x", "device=gpu"], "device is gpu"),
        (["archive=missing.tar", "out=out.jsonl"], "missing.tar cannot be read"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
