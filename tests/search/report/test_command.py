"""`python -m search.report`, and what a run says of its report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ideatree
from ideatree.commands import main as command
from search.app import run_folders as cli
from search.recordings.verdicts import RECORDINGS

RECORDING = RECORDINGS / "conv2d_h200"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(RECORDING, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_it_writes_into_the_run_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").stat().st_size > 4_000_000


@pytest.mark.slow
def test_a_recording_by_its_name_into_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["report", "conv2d_h200", "out=x.html"]) == 0
    assert capsys.readouterr().out == "x.html\n"
    assert [each.name for each in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give exactly one run: its folder, or the name of a shipped recording (conv2d_h200, "),
        (["one", "two"], "give exactly one run"),
        (["nowhere"], "run=nowhere: not the folder of a run (it has no journal.jsonl)"),
        (["conv2d_h200", "out=nowhere/x.html"], "cannot be written: No such file or directory"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["report", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_without_its_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("search.report.__main__.missing_packages", lambda: ["pandas", "plotly"])
    assert command(["report", "conv2d_h200"]) == 2
    needs = "needs pandas and plotly; pip install -e '.[report]'"
    assert needs in capsys.readouterr().err


def search(folder: Path, **keys: object) -> ideatree.Run:
    """Three rounds of the recording, with its verdicts."""
    repeated = {"run": str(RECORDING), "evaluations": True}
    return ideatree.search(
        "level1/conv2d",
        proposer="replay",
        rounds=2,
        ideas=3,
        branch=2,
        wandb="off",
        folder=folder,
        replay=repeated,
        **keys,
    )


@pytest.mark.slow
def test_a_run_keeps_its_report_and_says_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = search(tmp_path / "run")
    said = capsys.readouterr().out
    place = tmp_path / "run" / "report.html"
    assert f"report: {place}, written after each round" in said
    assert f"report: {place}\n" in said
    assert place.exists()
    assert len(run.frames().variants) == len(run.variants)
    assert run.report(tmp_path / "again.html").read_text() == place.read_text()


@pytest.mark.slow
def test_a_run_without_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(tmp_path / "run", report=False)
    assert not (tmp_path / "run" / "report.html").exists()
    assert "report.html" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_continues_without_the_report_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "missing_packages", lambda: ["plotly"])
    run = search(tmp_path / "run")
    assert run.reason == "rounds"
    assert "report: not written, it needs plotly: pip install -e '.[report]'" in capsys.readouterr().out
    assert not (tmp_path / "run" / "report.html").exists()
