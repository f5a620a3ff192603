"""Builds: what they leave is found again by the runner, what goes wrong is told, nothing gets out."""

from __future__ import annotations

import io
import os
import shutil
import signal
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.build import builder as build_module
from evaluators.build.build_cache import BuildCache
from evaluators.build.builder import (
    NICENESS,
    Build,
    build,
    close_thread_fork_server,
    runner_spec,
    scratch_folder,
)
from evaluators.evaluation import Status
from evaluators.isolation import confinement
from evaluators.problem import Kernel, Problem
from evaluators.runner.fork_server import ForkServer
from evaluators.runner.messages import Import
from evaluators.system.channel import ChannelClosed
from tests.evaluators.conftest import Marked, burning, gone

PROBLEM = Problem(
    name="file/double",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x
def get_inputs():
    return [torch.randn(8)]
def get_init_inputs():
    return []
""",
)
MODEL_NEW = "\nclass ModelNew: ...\n"


@pytest.fixture(scope="module", autouse=True)
def _one_fork_server(marked: Marked) -> Iterator[None]:
    yield
    close_thread_fork_server()
    assert gone(marked)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def built(
    source: str,
    root: Path,
    *,
    timeout_s: float = 60.0,
    append: str = MODEL_NEW,
    cache: BuildCache | None = None,
) -> Build:
    kernel = Kernel(source=source + append, language="cpp")
    return build(PROBLEM, kernel, root=root, architecture="", timeout_s=timeout_s, cache=cache)


def names_in(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return set(tar.getnames())


@pytest.mark.slow
def test_a_build_leaves_an_archive_and_no_folder(root: Path) -> None:
    done = built("open('made', 'w').write('x')", root)
    assert (done.status, done.log) == (None, "")
    assert names_in(done.archive) == {"made"}, "the source is written anew wherever it is measured"
    assert done.seconds > 0
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(:\n    pass", "SyntaxError"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("raise RuntimeError('error: expected a semicolon')", "error: expected a semicolon"),
        ("raise SystemExit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_what_an_import_raises_reaches_the_log(root: Path, source: str, words: str) -> None:
    done = built(source, root)
    assert done.status is Status.COMPILE_ERROR
    assert words in done.log
    assert done.archive == b""


def test_a_kernel_without_model_new(root: Path) -> None:
    done = built("class Model: ...", root, append="")
    assert done.status is Status.COMPILE_ERROR
    assert "no class ModelNew" in done.log


COMPILE = """
import os, subprocess, tempfile
folder = tempfile.gettempdir()
library = os.path.join(folder, "code.so")
if not os.path.exists(library):
    with open(os.path.join(folder, "compiles"), "a") as count:
        count.write("x")
    source = os.path.join(folder, "code.cpp")
    with open(source, "w") as file:
        file.write({code!r})
    done = subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
import ctypes
answer = ctypes.CDLL(library).answer()
with open(os.path.join(folder, "answer"), "w") as file:
    file.write(str(answer))
"""
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_compiler
def test_a_compilers_own_words_reach_the_log(root: Path) -> None:
    done = built(COMPILE.format(code='extern "C" int answer() { return fortytwo; }'), root)
    assert done.status is Status.COMPILE_ERROR
    assert "fortytwo" in done.log
    assert "was not declared in this scope" in done.log


@pytest.mark.slow
@needs_compiler
def test_a_runner_finds_what_the_build_compiled(root: Path) -> None:
    """At the same path, so that a build system takes it for its own, and without compiling again."""
    kernel = Kernel(
        source=COMPILE.format(code='extern "C" int answer() { return 42; }') + MODEL_NEW, language="cpp"
    )
    done = build(PROBLEM, kernel, root=root, architecture="", timeout_s=60)
    assert done.status is None, done.log
    fork_server = ForkServer.start(confinement.clean_environment())
    with scratch_folder(PROBLEM, kernel, root, done.archive) as scratch:
        assert (scratch / "compiles").read_text() == "x"
        (scratch / "answer").unlink()
        child = fork_server.fork(runner_spec(scratch, role="candidate", cpu_s=60, environment={}))
        child.channel.receive(30)
        child.channel.send(Import(problem=PROBLEM, architecture="").message())
        assert child.channel.receive(30) == {"op": "imported"}
        fork_server.end(child)
        assert (scratch / "answer").read_text() == "42"
        assert (scratch / "compiles").read_text() == "x", "it compiled again"
    fork_server.close()


@pytest.mark.slow
@pytest.mark.parametrize("burners", [0, 2 * len(os.sched_getaffinity(0))])
@pytest.mark.parametrize("source", ["import time\ntime.sleep(600)", "while True: pass"])
def test_a_build_that_hangs(root: Path, source: str, burners: int) -> None:
    with burning(burners):
        done = built(source, root, timeout_s=1.5)
    assert done.status is Status.TIMEOUT
    assert done.log.startswith("the build did not end within 1.5 s")
    assert done.archive == b""


@pytest.mark.parametrize(("architecture", "by"), [("", 0), ("9.0", NICENESS)])
def test_builds_for_a_gpu_give_way_to_what_is_measured(root: Path, architecture: str, by: int) -> None:
    kernel = Kernel(source="import os\nopen('nice', 'w').write(str(os.nice(0)))" + MODEL_NEW, language="cpp")
    done = build(PROBLEM, kernel, root=root, architecture=architecture, timeout_s=60)
    with tarfile.open(fileobj=io.BytesIO(done.archive)) as tar:
        written = tar.extractfile("nice")
        assert written is not None
        assert int(written.read()) == min(19, os.nice(0) + by)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nprint('last words', flush=True)\nos._exit(0)",
        "import ctypes\nprint('last words', flush=True)\nctypes.string_at(0)",
        "import os\nprint('last words', flush=True)\nos.close(3)\nimport time; time.sleep(0.2)",
    ],
    ids=["exits", "faults", "closes its channel"],
)
def test_a_build_that_dies(root: Path, source: str) -> None:
    done = built(source, root)
    assert done.status is Status.CRASHED
    assert "last words" in done.log


@pytest.mark.parametrize(
    "message",
    [
        b"{}",
        b'{"op": "failed"}',
        b'{"op": "failed", "status": "correct"}',
        b'{"op": "failed", "status": "rejected"}',
        b'{"op": "failed", "status": "infrastructure_error"}',
        b'{"op": "failed", "status": 7, "error": [1]}',
        b'{"op": ["imported"]}',
        b'{"op": "failed", "error": "\\ud800"}',
        b"garbage",
        b"[]",
        b"\x80\x04\x95",
        b"[" * 100_000,
    ],
    ids=lambda message: repr(message[:60]),
)
def test_a_forged_answer_is_the_kernels_fault(root: Path, message: bytes) -> None:
    done = built(f"import os, time\nos.write(3, {message!r} + b'\\n')\ntime.sleep(600)", root)
    assert done.status is Status.COMPILE_ERROR
    done.log.encode()


def test_a_forged_success_gains_nothing(root: Path) -> None:
    """The runner imports the kernel itself: what counts is what happens there."""
    source = """import os, time\nos.write(3, b'{"op": "imported"}\\n')\ntime.sleep(600)"""
    assert built(source, root).status is None


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
    """The folder is made anew for the runner: what a build put in the place of the source is gone."""
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


def test_a_scratch_folder_is_the_kernels_own_and_for_the_time_of_the_block(root: Path) -> None:
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


def test_a_daemon_of_a_build_does_not_outlive_it(root: Path, marked: Marked) -> None:
    built("pass", root)  # the fork server is up
    before = len(marked())
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)"
    assert built(daemon, root).status is None
    assert gone(lambda: marked()[before:])


def test_a_build_knows_the_architecture_and_sees_no_gpu(root: Path) -> None:
    names = ("TORCH_CUDA_ARCH_LIST", "CUDA_VISIBLE_DEVICES")
    source = f"import os\nraise RuntimeError(repr([os.environ.get(n) for n in {names}]))"
    kernel = Kernel(source=source + MODEL_NEW, language="cuda")
    assert "['9.0', '']" in build(PROBLEM, kernel, root=root, architecture="9.0", timeout_s=60).log
    assert "[None, '']" in build(PROBLEM, kernel, root=root, architecture="", timeout_s=60).log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value", "source", "words"),
    [
        (
            "MAX_SCRATCH_BYTES",
            2**25,
            "for n in range(10**6): open(f'file{n}', 'wb').write(bytes(2**20))",
            "the build wrote more than 0.03125 GB of files",
        ),
        (
            "MAX_BUILD_PROCESSES",
            20,
            "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)",
            "processes; the limit is 20",
        ),
        (
            "MAX_MEMORY_BYTES",
            2**30,
            "import time\nx = b'x' * (3 * 2**29)\ntime.sleep(600)",
            "bytes of memory; the limit is 1,073,741,824",
        ),
    ],
    ids=["files", "processes", "memory"],
)
def test_a_build_that_takes_too_much(
    root: Path,
    marked: Marked,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    source: str,
    words: str,
) -> None:
    assert built("pass", root).status is None, "the fork server is up"
    before = len(marked())
    monkeypatch.setattr(build_module, limit, value)
    done = built(source, root)
    assert done.status is Status.CRASHED
    assert words in done.log
    assert gone(lambda: marked()[before:])
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_half_a_message_does_not_stop_the_watch(root: Path) -> None:
    done = built("import os, time\nos.write(3, b'{')\ntime.sleep(600)", root, timeout_s=1.5)
    assert done.status is Status.TIMEOUT


def test_a_cached_build_is_not_built_again(root: Path, tmp_path: Path) -> None:
    """Nor under another root: the pool of another run has one of its own."""
    cache = BuildCache(folder=tmp_path / "builds")
    source = "import os\nopen('made', 'w').write(repr(os.urandom(8)))"
    first = built(source, root, cache=cache)
    again = built(source, tmp_path / "other", cache=cache)
    assert first.status is None
    assert again.archive == first.archive
    assert built(source, root).archive != first.archive
    assert built(source + "\n", root, cache=cache).archive != first.archive


def test_a_compile_error_is_cached_too(root: Path, tmp_path: Path) -> None:
    cache = BuildCache(folder=tmp_path / "builds")
    source = "import os\nraise RuntimeError(f'error: {os.urandom(8)}')"
    first = built(source, root, cache=cache)
    assert first.status is Status.COMPILE_ERROR
    again = built(source, root, cache=cache)
    assert (again.status, again.log, again.archive) == (first.status, first.log, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(600)",
        "import os\nos._exit(0)",
        "raise OSError(28, 'No space left on device')",
        "raise MemoryError",
    ],
    ids=["timeout", "crash", "full disk", "no memory"],
)
def test_what_may_go_better_next_time_is_not_cached(root: Path, tmp_path: Path, source: str) -> None:
    built(source, root, timeout_s=1.5, cache=BuildCache(folder=tmp_path / "builds"))
    assert not (tmp_path / "builds").exists()


def test_a_damaged_entry_is_built_again(root: Path, tmp_path: Path) -> None:
    cache = BuildCache(folder=tmp_path / "builds")
    first = built("x = 1", root, cache=cache)
    (entry,) = (tmp_path / "builds").iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    assert names_in(built("x = 1", root, cache=cache).archive) == names_in(first.archive)


def test_after_the_fork_server_died_the_next_build_starts_another(root: Path) -> None:
    assert built("pass", root).status is None
    fork_server = build_module._thread_fork_server(root)
    os.kill(fork_server.pid, signal.SIGKILL)
    with pytest.raises(ChannelClosed):
        built("pass", root)
    assert built("pass", root).status is None
