"""`ideatree queue`: what waits, and its way to machines without the folder and back."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest

from evaluators.base.usage_error import UsageError
from evaluators.queue.archive import packed
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.requests import Operation
from evaluators.records.problem import Kernel
from search.models.providers.mailbox import Mailbox
from search.queue.__main__ import main
from search.records.model_calls import Purpose, Question
from search.run.queued_search import NAME, queue_name
from tests.evaluators.queue.queues import filled, request, verdict_on


def test_the_status_shows_devices_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, shared = tmp_path / "outputs/a/run", tmp_path / "shared"
    name = queue_name(run)
    assert queue_name(run) == name and (run / NAME).exists()
    (run / ".hydra").mkdir()
    (run / ".hydra/config.yaml").write_text(f"proposer: {{models: {{mailbox: {{folder: {shared}}}}}}}\n")
    mailbox = Mailbox(folder=str(shared))
    mailbox.begin(run)
    assert mailbox.open_questions() == []
    question = Question(purpose=Purpose.IDEAS, system="", prompt="What is faster?")
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(mailbox.complete(question), 0.01))
    (place,) = shared.glob("a-run-*")
    (place / "0002-code-y.md").write_text("Write it.")
    (place / "0002-code-y.answer.md").write_text("Here.")
    folder = filled(
        tmp_path / "q", [request(search=name), request(1, search="other"), request(2, search=name)]
    )
    (folder.requests / "other" / "bad.json").write_text("{}")
    assert main(["status", f"path={tmp_path}/q", f"runs={tmp_path}/outputs"]) == 1
    said = capsys.readouterr().out
    assert f"{name} ({run}):\n    awaiting a device: 2 evaluate; 0 with a worker; about 6 s" in said
    assert f"awaiting an answer (1):\n        {place}/0001-ideas-" in said
    assert "other:\n    awaiting a device: 1 evaluate" in said
    assert (
        "requests: 3, searches: 2, device seconds: about 9" in said and "request bad cannot be read" in said
    )


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, verdicts, path = tmp_path / "in.tar", tmp_path / "out.jsonl", f"path={tmp_path}/q"
    opening = request(search="c", operation=Operation.DESCRIBE, kernels=[])
    asked = [request(n, search="ab"[n % 2], kind="NVIDIA H200") for n in range(4)]
    filled(tmp_path / "q", [*asked, opening])
    assert main(["pack", path, f"out={archive}"]) == 0
    assert "requests: 5, searches: 3, device seconds: about 22" in capsys.readouterr().out
    ordered = list(packed(archive))
    assert ordered[0] == opening and {each.id for each in ordered} == {each.id for each in [*asked, opening]}
    elsewhere = verdict_on(asked[0], device="NVIDIA L4")
    lines = [
        verdict_on(asked[1], device="NVIDIA H200").text,
        elsewhere.text,
        verdict_on(request("x")).text,
        "{",
    ]
    verdicts.write_text("\n".join(lines) + "\n")
    assert main(["unpack", path, f"verdicts={verdicts}"]) == 1
    said = capsys.readouterr().out
    assert f"line 2: the verdict on request {asked[0].id}" in said and "pinned to NVIDIA H200" in said
    assert "line 3" in said and "is foreign" in said and "line 4: a verdict cannot be read" in said
    assert "verdicts: 1 stored, 0 known already, 3 refused" in said
    assert len(QueueFolder(tmp_path / "q").pending()) == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["status", "path=missing"], "path=missing is not a folder"),
        (["unpack", "path=."], "unpack needs verdicts="),
        (["unpack", "path=.", "verdicts=missing"], "missing cannot be read"),
        (["look", "path=."], "action is look"),
        (["pack", "path=.", "out=missing/x.tar"], "missing"),
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


def test_an_altered_archive_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = request(kernels=[Kernel(source="# a", language="cuda")])
    evil = tmp_path / "evil.tar"
    (tmp_path / "x").write_text(asked.text.replace("# a", "# b"))
    with tarfile.open(evil, "w") as archive:
        archive.add(tmp_path / "x", arcname=f"{asked.id}.json")
    with pytest.raises(UsageError, match=f"request {asked.id} was altered"):
        list(packed(evil))
    with tarfile.open(evil, "w") as archive:
        archive.add(tmp_path, arcname="../..", recursive=False)
    with pytest.raises(UsageError, match="is no request"):
        list(packed(evil))
