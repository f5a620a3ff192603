"""The command with its devices behind a folder: it stops, says so by its status, and continues."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaluators.evaluate.__main__ import main as evaluate
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.requests import DeviceRequest, Operation
from evaluators.queue.verdicts import DeviceVerdict
from evaluators.records.diagnosis import Diagnosis
from search.records.events import KernelDiagnosed, RunFinished, RunStarted, VariantEvaluated
from search.records.journal import replay
from search.run.queued_search import NAME
from tests.evaluators.scheduler.fake_host import CORRECT
from tests.search.run.test_run import SMALL, call, only_folder

pytestmark = pytest.mark.slow

DEVICE = "a CPU elsewhere"


def queued(tmp_path: Path) -> list[str]:
    return [
        *SMALL,
        "rounds=1",
        "ideas=1",
        "branch=2",
        "report=false",
        "pool=folder",
        f"pool.path={tmp_path}/q",
    ]


def answer_all(queue: Path) -> Counter[str]:
    folder, answered = QueueFolder(queue), Counter[str]()
    for each in folder.pending():
        asked = folder.read(each)
        found: dict[str, Any] = {"evaluations": tuple(CORRECT for _ in asked.kernels)}
        if asked.operation is Operation.DIAGNOSE:
            found = {"diagnosis": Diagnosis(reached=("static",))}
        elif not asked.kernels:
            found = {"facts": {"device": DEVICE}}
        answer = DeviceVerdict(request=asked.id, worker="w", device=DEVICE, **found)
        folder.answer(asked.search, answer)
        answered[asked.operation.value] += 1
        assert asked.kind == ("" if asked.operation.value == "describe" else DEVICE)
    return answered


def test_a_search_waits_for_a_device_and_continues(tmp_path: Path) -> None:
    """Its problem has not been opened when it stops first."""
    assert call(tmp_path, *queued(tmp_path), "until=blocked") == 3
    folder = only_folder(tmp_path)
    resume = [f"resume={folder}"]
    answered, status = answer_all(tmp_path / "q"), 3
    assert answered == {"describe": 1}
    for _ in range(10):
        if (status := call(tmp_path, *resume)) != 3:
            break
        answered += answer_all(tmp_path / "q")
    assert status == 0
    events = list(replay(folder / "journal.jsonl"))
    judged = [each.variant.id for each in events if isinstance(each, VariantEvaluated)]
    assert len(judged) == len(set(judged)) == answered["evaluate"] == 2
    assert answered["describe"] == answered["thorough"] == 1
    started = next(each for each in events if isinstance(each, RunStarted))
    assert started.environment == {"device": DEVICE}
    last = events[-1]
    assert isinstance(last, RunFinished) and last.reason == "rounds" and last.confirmed is not None
    assert (folder / NAME).read_text().strip() in {each.name for each in (tmp_path / "q/verdicts").iterdir()}
    assert not QueueFolder(tmp_path / "q").pending()


def test_a_search_waits_for_diagnoses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [*queued(tmp_path), "rounds=2", "profile=static", "compare_leaders=false", "until=blocked"]
    status = call(tmp_path, *chosen)
    folder = only_folder(tmp_path)
    answered = Counter[str]()
    while status == 3 and not answered["diagnose"]:
        assert "awaiting a device" in capsys.readouterr().out
        answered += answer_all(tmp_path / "q")
        status = call(tmp_path, f"resume={folder}")
    assert status == 3 and answered["evaluate"] == answered["diagnose"] == 2
    events = list(replay(folder / "journal.jsonl"))
    assert len([each for each in events if isinstance(each, KernelDiagnosed)]) == 2
    assert {each.operation.value for each in requests(tmp_path / "q")} == {"evaluate"}, "the second round"


def requests(queue: Path) -> list[DeviceRequest]:
    folder = QueueFolder(queue)
    return [folder.read(each) for each in folder.pending()]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["until=later"], "until is later"),
        (["profile=deep"], "profile is deep"),
        (["pool.path=/dev/null"], "/dev/null cannot be used as a queue"),
    ],
)
def test_what_a_queue_cannot_do_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert call(tmp_path, *queued(tmp_path), *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not list((tmp_path / "outputs").rglob("journal.jsonl"))


def test_other_commands_refuse_a_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tmp_path / "k.py"
    kernel.write_text("class ModelNew: ...")
    chosen = ["pool=folder", f"pool.path={tmp_path}/q", f"kernel={kernel}", "device=cpu"]
    assert evaluate(["problem=level1/softmax", *chosen]) == 2
    assert "pool=folder is for ideatree run and campaign" in capsys.readouterr().err
