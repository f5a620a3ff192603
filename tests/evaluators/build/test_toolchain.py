"""What the machine lacks is its fault, and said in one line; what it has is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evaluators.build import toolchain
from evaluators.build.build_cache import BuildCache
from evaluators.build.builder import close_thread_fork_server
from evaluators.build.toolchain import missing_module, missing_tool
from evaluators.records.evaluation import NOT_HERE, Evaluation, Status
from evaluators.system import installed_languages
from tests.evaluators.build.builds import built

EXTENSION = "from torch.utils.cpp_extension import load_inline\nload_inline(name='x', cpp_sources='')\n"
CUDA = EXTENSION.replace("cpp_sources=''", "cuda_sources=''")
TRITON = "import triton\n"


def tools(folder: Path, *names: str) -> str:
    """A PATH with these programs only."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("there", "source", "log", "device", "says"),
    [
        ("c++", EXTENSION, "anything", "cpu", "this machine has no ninja; pip install ninja"),
        ("", "", "RuntimeError: Ninja is required to load C++ extensions", "cpu", "no ninja"),
        ("ninja", EXTENSION, "/bin/sh: 1: c++: not found", "cpu", "no C++ compiler; apt install g++"),
        ("ninja c++", EXTENSION, "main.cpp:3:5: error: expected ';'", "cpu", ""),
        ("ninja c++", CUDA, "CUDA_HOME environment variable is not set", "cuda", "no nvcc; install the CUDA"),
        ("ninja c++", CUDA, "CUDA_HOME environment variable is not set", "cpu", ""),
        (
            "",
            "",
            "RuntimeError: Failed to automatically detect CUDA installation.",
            "cuda",
            "no nvcc; install",
        ),
        ("ninja c++ nvcc", CUDA, "kernel.cu(12): error: expected", "cuda", ""),
        (
            "",
            "torch.compile",
            "InvalidCxxCompiler: No working C++ compiler found",
            "cpu",
            "for torch.compile",
        ),
        ("g++", "torch.compile", "InvalidCxxCompiler: No working C++ compiler found", "cpu", ""),
        ("", TRITON, "RuntimeError: Failed to find C compiler.", "cuda", "no C compiler for Triton"),
        ("clang", TRITON, "RuntimeError: Failed to find C compiler.", "cuda", ""),
        ("ninja c++", EXTENSION, "c++: fatal error: cannot execute 'cc1plus'", "cpu", "no complete C++ comp"),
        ("", "# cpp_extension is not used\n", "NameError: name 'x' is not defined", "cpu", ""),
        ("", "", "SyntaxError: invalid syntax", "cuda", ""),
    ],
)
def test_what_a_failure_needs_and_the_machine_lacks(
    there: str, source: str, log: str, device: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", tools(tmp_path, *there.split()))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(installed_languages, "_has_module", lambda name: True)
    found = missing_tool(source, log, device=device, root=tmp_path)
    assert bool(found) == bool(says) and says in found
    assert "\n" not in found


def test_modules_headers_and_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_languages, "_has_module", lambda name: name != "triton")
    monkeypatch.setattr(installed_languages, "_version", lambda package: "")
    assert "no Triton; pip install triton" in missing_tool(TRITON, "…", device="cuda", root=tmp_path)
    assert missing_tool(TRITON, "…", device="cpu", root=tmp_path) == "", "a CPU runs none"
    monkeypatch.setattr(toolchain, "_has_header", lambda name: False)
    log = "pybind.h:1: fatal error: Python.h: No such file or directory"
    assert "no header Python.h" in missing_tool("", log, device="cpu", root=tmp_path)
    full = "OSError: [Errno 28] No space left on device"
    assert missing_tool("", full, device="cpu", root=tmp_path / "new") == ""
    monkeypatch.setattr(toolchain, "FREE_BYTES", 2**60)
    found = missing_tool("", full, device="cpu", root=tmp_path / "new")
    assert found == f"the disk of {tmp_path} is full; free some space there"


def test_a_module_that_a_reference_imports() -> None:
    log = "Traceback …\nModuleNotFoundError: No module named 'nowhere_to_be_found.part'\n"
    assert missing_module(log) == (
        "this machine has no Python module nowhere_to_be_found; install its package"
    )
    assert missing_module("ModuleNotFoundError: No module named 'json.nothing'\n") == ""


def test_only_lasting_evaluations_are_kept() -> None:
    assert Evaluation(status=Status.COMPILE_ERROR).is_lasting
    assert Evaluation(status=Status.UNFIT_REFERENCE, log="zeros pass").is_lasting
    assert not Evaluation(status=Status.UNFIT_REFERENCE, log=f"{NOT_HERE}: too large").is_lasting
    assert not Evaluation(status=Status.INFRASTRUCTURE_ERROR, log="no ninja").is_lasting


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "status"),
    [
        (EXTENSION, Status.INFRASTRUCTURE_ERROR),
        ("raise RuntimeError('Ninja is required to load C++ extensions')\n", Status.INFRASTRUCTURE_ERROR),
        ("1 / 0\n", Status.COMPILE_ERROR),
    ],
)
def test_a_build_without_ninja_is_not_the_kernels_fault(
    source: str, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_thread_fork_server()  # it keeps the PATH with which it was started
    monkeypatch.setenv("PATH", tools(tmp_path))
    cache = BuildCache(folder=tmp_path / "builds")
    try:
        done = built(source, tmp_path / "root", cache=cache)
    finally:
        close_thread_fork_server()
    assert done.status is status
    if status is Status.INFRASTRUCTURE_ERROR:
        assert re.match(r"this machine has no ninja; pip install ninja, .*\n", done.log)
        assert not (tmp_path / "builds").exists(), "with ninja it may be right"
    monkeypatch.undo()
    again = built("import os; os.environ['PATH'] = ''\n" + source, tmp_path / "root", cache=cache)
    close_thread_fork_server()
    assert again.status is Status.COMPILE_ERROR, "a kernel cannot hide what the machine has"
