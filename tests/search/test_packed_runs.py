"""A run in one file: it replays and reports as its folder does, and names no path of the machine."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from search.pack.__main__ import main
from search.recordings.archives import FILES, pack, unpacked
from search.recordings.verdicts import recording_folder
from search.run import __main__ as run

SOFTMAX = Path(__file__).parent / "recordings" / "softmax_cpu"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    assert main([str(SOFTMAX), f"out={tmp_path / 'softmax.tar.xz'}"]) == 0
    return tmp_path / "softmax.tar.xz"


def test_the_journal_is_the_same_and_the_file_small(archive: Path) -> None:
    folder = recording_folder(str(archive))
    assert (folder / "journal.jsonl").read_bytes() == (SOFTMAX / "journal.jsonl").read_bytes()
    assert {each.name for each in folder.iterdir()} <= {name.partition("/")[0] for name in FILES}
    assert archive.stat().st_size < (SOFTMAX / "journal.jsonl").stat().st_size / 4
    assert recording_folder(str(archive)) == folder


def test_equal_runs_give_equal_files(archive: Path, tmp_path: Path) -> None:
    pack(SOFTMAX, tmp_path / "again.tar.xz")
    assert (tmp_path / "again.tar.xz").read_bytes() == archive.read_bytes()


@pytest.mark.slow
def test_a_packed_run_replays(archive: Path, tmp_path: Path) -> None:
    asked = ["proposer=replay", f"replay.run={archive}", "replay.evaluations=true", "wandb=off"]
    assert run.main([*asked, f"out={tmp_path / 'runs'}"]) == 0
    assert list((tmp_path / "runs").rglob("best.py"))


def test_settings_name_no_folder_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / ".hydra").mkdir(parents=True)
    (folder / "journal.jsonl").write_text("{}\n")
    (folder / ".hydra/config.yaml").write_text("pool:\n  path: /home/me/queue\n  trusted: false\n")
    (folder / ".hydra/overrides.yaml").write_text("- pool.path=/home/me/queue\n- rounds=2\n")
    pack(folder, tmp_path / "run.tar.xz")
    settings = unpacked(tmp_path / "run.tar.xz") / ".hydra"
    assert (settings / "config.yaml").read_text() == "pool:\n  path: queue\n  trusted: false\n"
    assert (settings / "overrides.yaml").read_text() == "- pool.path=queue\n- rounds=2\n"


def test_other_members_are_left_where_they_are(archive: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.tar.xz"
    with tarfile.open(foreign, "w:xz") as file:
        file.add(SOFTMAX / "journal.jsonl", "journal.jsonl")
        file.add(__file__, "../outside.py")
        file.add(__file__, "variants/kernel.py")
    assert [each.name for each in unpacked(foreign).iterdir()] == ["journal.jsonl"]


@pytest.mark.parametrize("content", [b"", b"no archive", b"\xfd7zXZ\x00"])
def test_what_is_no_packed_run_gets_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.tar.xz").write_bytes(content)
    asked = ["proposer=replay", f"replay.run={tmp_path / 'x.tar.xz'}", "replay.evaluations=true", "wandb=off"]
    assert run.main([*asked, f"out={tmp_path / 'runs'}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "cannot be read as a packed run" in line


def test_a_folder_without_a_run_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"run={tmp_path}", f"out={tmp_path / 'x.tar.xz'}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.endswith("not the folder of a run (it has no journal.jsonl)")
    for number, stamp in enumerate(("2026-01-31_12-00-00", "2026-01-30_12-00-00")):
        (tmp_path / "level1" / "conv2d" / stamp).mkdir(parents=True)
        journal = tmp_path / "level1" / "conv2d" / stamp / "journal.jsonl"
        journal.touch()
        os.utime(journal, (number, number))
    assert main([f"run={tmp_path}", f"out={tmp_path / 'x.tar.xz'}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.endswith(f"; the newest run below it is {tmp_path}/level1/conv2d/2026-01-30_12-00-00")
