"""Only scratch folders of killed processes are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluators.isolation import scratch

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys, time
from pathlib import Path
from evaluators.isolation import scratch
root = Path(sys.argv[1])
scratch.claim(root)
(root / "kernel" / "cache").mkdir(parents=True)
(root / "kernel" / "cache" / "file").write_text("x" * 1000)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "held")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_folders_of_a_killed_process_are_removed(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "held" / "kernel").exists()
    scratch.claim(tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.lock"]
    scratch.release(tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_folders_of_a_living_process_stay(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    scratch.claim(tmp_path / "mine")
    scratch.release(tmp_path / "mine")
    assert (tmp_path / "held" / "kernel" / "cache" / "file").exists()


def test_several_processes_may_keep_one_folder(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    scratch.claim(tmp_path / "held")
    holder.kill()
    holder.wait()
    scratch.claim(tmp_path / "other")
    assert (tmp_path / "held" / "kernel").exists()
    for name in ("held", "other"):
        scratch.release(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_folders_without_a_claim_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    scratch.claim(tmp_path / "mine")
    scratch.release(tmp_path / "mine")
    assert (tmp_path / "notes").exists()


def test_each_user_has_a_separate_folder() -> None:
    assert scratch.scratch_root("a").parent.name == f"ideatree-{os.getuid()}"


def test_excessive_contents_of_a_folder_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "data").write_bytes(b"x" * 2**20)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**30)
    assert scratch.too_much_written(tmp_path, 2**21) is None, "what counts is what it takes on the disk"
    assert "GB of files" in str(scratch.too_much_written(tmp_path, 2**19))
    monkeypatch.setattr(scratch, "MAX_FILES", 2)
    assert "more than 2 files" in str(scratch.too_much_written(tmp_path, 2**40))


@pytest.mark.slow
def test_a_folder_is_removed_however_deep_and_closed_it_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    here = os.open(".", os.O_RDONLY)
    root.mkdir()
    os.chdir(root)
    for _ in range(3000):
        os.mkdir("a")
        os.chdir("a")
    os.fchdir(here)
    os.close(here)
    (root / "closed").mkdir(mode=0o000)
    assert "too deeply" in str(scratch.too_much_written(root, 2**40))
    scratch.remove(root)
    assert not root.exists()
    scratch.remove(root)
