"""Scratch folders and archives of builds: nothing outside is read or written, and no folder is left."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.build import builder as build_module
from evaluators.build.builder import scratch_folder
from evaluators.records.problem import Kernel
from tests.evaluators.build.builds import PROBLEM, built, names_in

pytestmark = pytest.mark.usefixtures("one_fork_server")


def test_links_out_of_the_scratch_folder_are_not_packed(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_text("secret")
    done = built(
        f"""
import os
os.symlink({str(secret)!r}, "link")
os.symlink({str(tmp_path / "folder")!r}, "folder")
os.symlink("/etc/passwd", "passwd")
os.symlink("kernel.py", "own")
os.mkfifo("pipe")
os.makedirs("deep/er")
open("deep/er/file", "w").write("x")
""",
        root,
    )
    assert done.status is None, done.log
    assert names_in(done.archive) == {"deep/er/file"}
    assert b"secret" not in done.archive.replace(str(secret).encode(), b"")


def test_a_link_in_place_of_a_file_does_not_write_through_it(root: Path, tmp_path: Path) -> None:
    """The folder is created anew for the runner, without anything that a build put in the source's place."""
    target = tmp_path / "target"
    target.write_text("mine")
    done = built(f"import os\nos.unlink('kernel.py')\nos.symlink({str(target)!r}, 'kernel.py')", root)
    assert done.status is None
    kernel = Kernel(source="x = 1", language="cpp")
    with scratch_folder(PROBLEM, kernel, root, done.archive) as scratch:
        assert (scratch / "kernel.py").read_text() == "x = 1"
    assert target.read_text() == "mine"


def test_an_archive_has_a_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "MAX_ARCHIVE_BYTES", 10_000)
    done = built("for n in range(30): open(f'file{n}', 'w').write('x' * 1000)", root)
    assert done.status is None
    assert 1 <= len(names_in(done.archive)) <= 10
    assert len(done.archive) < 40_000


@pytest.mark.parametrize(
    "member", ["../outside", "/tmp/helper/outside", "link/outside"], ids=["up", "absolute", "through a link"]
)
def test_an_archive_cannot_write_outside(root: Path, tmp_path: Path, member: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
        data = tarfile.TarInfo(member)
        data.size = 1
        tar.addfile(data, io.BytesIO(b"x"))
    with (
        pytest.raises(tarfile.FilterError),
        scratch_folder(PROBLEM, Kernel(source="x", language="cpp"), root, buffer.getvalue()),
    ):
        pass
    assert not (root / "outside").exists()
    assert not (tmp_path / "outside").exists()


def test_each_kernel_has_a_scratch_folder_for_the_duration_of_the_block(root: Path) -> None:
    kernel = Kernel(source="x = 1", language="cpp")
    with scratch_folder(PROBLEM, kernel, root) as scratch:
        assert scratch.parent == root
        assert scratch.stat().st_mode & 0o777 == 0o700
        assert (scratch / "kernel.py").read_text() == "x = 1"
        (scratch / "left").write_text("x")
        with scratch_folder(replace(PROBLEM, dtype="float64"), kernel, root) as other:
            assert other != scratch
            assert (scratch / "left").exists()
        again = scratch_folder(PROBLEM, kernel, root)
        with again as scratch:
            assert not (scratch / "left").exists()
    assert not scratch.exists()


def test_folders_that_a_kernel_has_closed_are_removed_too(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    source = f"""
import os
os.makedirs("closed/inner")
open("closed/inner/file", "w").write("x")
os.symlink({str(outside)!r}, "closed/link")
os.chmod("kernel.py", 0)
os.chmod("closed/inner", 0)
os.chmod("closed", 0)
"""
    assert built(source, root).status is None
    assert list(root.iterdir()) == []
    assert outside.stat().st_mode & 0o777 == 0o500, "a link was followed"
