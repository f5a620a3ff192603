"""Builds of well-behaved kernels: the runner finds the result, compile errors are logged, a cache is used."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from evaluators.build.build_cache import BuildCache
from evaluators.build.builder import NICENESS, build, runner_spec, scratch_folder
from evaluators.isolation import confinement
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel
from evaluators.runner.fork_server import ForkServer
from evaluators.runner.messages import Import
from tests.evaluators.build.builds import MODEL_NEW, PROBLEM, built, names_in

pytestmark = pytest.mark.usefixtures("one_fork_server")


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
def test_errors_during_import_reach_the_log(root: Path, source: str, words: str) -> None:
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
def test_compiler_messages_reach_the_log(root: Path) -> None:
    done = built(COMPILE.format(code='extern "C" int answer() { return fortytwo; }'), root)
    assert done.status is Status.COMPILE_ERROR
    assert "fortytwo" in done.log
    assert "was not declared in this scope" in done.log


@pytest.mark.slow
@needs_compiler
def test_a_runner_finds_what_the_build_compiled(root: Path) -> None:
    """At the same path, so that a build system accepts it without compiling again."""
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


@pytest.mark.parametrize(("architecture", "by"), [("", 0), ("9.0", NICENESS)])
def test_builds_for_a_gpu_yield_to_measurements(root: Path, architecture: str, by: int) -> None:
    kernel = Kernel(source="import os\nopen('nice', 'w').write(str(os.nice(0)))" + MODEL_NEW, language="cpp")
    done = build(PROBLEM, kernel, root=root, architecture=architecture, timeout_s=60)
    with tarfile.open(fileobj=io.BytesIO(done.archive)) as tar:
        written = tar.extractfile("nice")
        assert written is not None
        assert int(written.read()) == min(19, os.nice(0) + by)


def test_a_build_knows_the_architecture_and_sees_no_gpu(root: Path) -> None:
    names = ("TORCH_CUDA_ARCH_LIST", "CUDA_VISIBLE_DEVICES")
    source = f"import os\nraise RuntimeError(repr([os.environ.get(n) for n in {names}]))"
    kernel = Kernel(source=source + MODEL_NEW, language="cuda")
    assert "['9.0', '']" in build(PROBLEM, kernel, root=root, architecture="9.0", timeout_s=60).log
    assert "[None, '']" in build(PROBLEM, kernel, root=root, architecture="", timeout_s=60).log


def test_a_cached_build_is_not_built_again(root: Path, tmp_path: Path) -> None:
    """Not under another root either: another run's pool has a different one."""
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
def test_transient_failures_are_not_cached(root: Path, tmp_path: Path, source: str) -> None:
    built(source, root, timeout_s=1.5, cache=BuildCache(folder=tmp_path / "builds"))
    assert not (tmp_path / "builds").exists()


def test_a_damaged_entry_is_built_again(root: Path, tmp_path: Path) -> None:
    cache = BuildCache(folder=tmp_path / "builds")
    first = built("x = 1", root, cache=cache)
    (entry,) = (tmp_path / "builds").iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    assert names_in(built("x = 1", root, cache=cache).archive) == names_in(first.archive)
