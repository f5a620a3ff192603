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
from evaluators.records.race import after_quick_stage
from search.records.events import (
    KernelDiagnosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantJudgedInFull,
)
from search.records.journal import replay
from search.records.run_state import rebuild
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
        quick = asked.operation is Operation.RACE and asked.threshold is None
        verdict = after_quick_stage(CORRECT, None) if quick else CORRECT
        found: dict[str, Any] = {"evaluations": tuple(verdict for _ in asked.kernels)}
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


def test_prompts_use_shipped_facts_until_a_worker_has_described_the_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = ["device=cuda", "pool.device=NVIDIA H200", "proposer=mailbox", "until=blocked"]
    assert call(tmp_path, *queued(tmp_path), *pinned) == 3
    said = capsys.readouterr().out
    assert "awaiting an answer (1)" in said and "awaiting a device (1)" in said
    assert "device: NVIDIA H200; prompts use its shipped facts" in said
    folder, queue = only_folder(tmp_path), QueueFolder(tmp_path / "q")
    (question,) = (folder / "mailbox").glob("0001-*.md")
    assert "- NVIDIA H200\n- compute capability 9.0\n- 132 streaming" in question.read_text()
    (pending,) = queue.pending()
    asked = queue.read(pending)
    assert (asked.operation, asked.kind) == (Operation.DESCRIBE, "NVIDIA H200")
    assert call(tmp_path, f"resume={folder}", "pool.device=NVIDIA L40S") == 2
    assert "the search was measured on NVIDIA H200" in capsys.readouterr().err
    facts = {"device": "NVIDIA H200", "multi_processor_count": "131"}
    queue.answer(asked.search, DeviceVerdict(request=asked.id, worker="w", device="NVIDIA H200", facts=facts))
    assert call(tmp_path, f"resume={folder}") == 3
    said = capsys.readouterr().out
    assert "awaiting an answer (1)" in said and "awaiting a device (" not in said
    assert "shipped facts" not in said
    started = rebuild(replay(folder / "journal.jsonl")).started
    assert started is not None and started.environment == facts


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


def test_a_race_goes_through_the_queue(tmp_path: Path) -> None:
    """The full stage of a kernel is another request, made once the quick verdicts of the round are there."""
    assert call(tmp_path, *queued(tmp_path), "race=true", "until=blocked") == 3
    folder, queue = only_folder(tmp_path), QueueFolder(tmp_path / "q")
    asked: list[list[float | None]] = []
    status = 3
    for _ in range(12):
        waiting = [queue.read(each) for each in queue.pending()]
        asked.append([each.threshold for each in waiting if each.operation.value == "race"])
        answer_all(tmp_path / "q")
        if (status := call(tmp_path, f"resume={folder}")) != 3:
            break
    assert status == 0
    assert [each for each in asked if each] == [[None, None], [0.0], [0.0]]
    events = list(replay(folder / "journal.jsonl"))
    quick = [each.variant for each in events if isinstance(each, VariantEvaluated)]
    assert all(each.is_outpaced for each in quick)
    assert len([each for each in events if isinstance(each, VariantJudgedInFull)]) == len(quick) == 2
    last = events[-1]
    assert isinstance(last, RunFinished) and last.confirmed is not None
