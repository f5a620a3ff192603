"""Profiles on a CPU, and what becomes of the counters where `ncu` does not work."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.device.settings import Settings
from evaluators.profiling import profiler as module
from evaluators.profiling.compilers import cuda_warnings
from evaluators.profiling.profiler import KernelProfiler, ProfileFailed, ProfileLimits
from evaluators.records.evaluation import Roofline
from evaluators.records.problem import Case, Kernel, Problem
from evaluators.system.cuda_driver import Gpu
from tests.evaluators.diagnose.measured import unpack

REFERENCE = """
import torch
from torch import nn

size = 4096

class Model(nn.Module):
    def forward(self, x):
        return 2 * x

def get_inputs():
    return [torch.randn(size)]

def get_init_inputs():
    return []
"""
PROBLEM = Problem(name="file/twice", source=REFERENCE)
TORCH = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return 2 * x
"""
CPP = '''
from torch import nn
from torch.utils.cpp_extension import load_inline

source = """
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    float* to = y.data_ptr<float>();
    for (long i = 0; i < x.numel(); i++) to[i] = 2.0f * from[i];
    for (long k = 1; k < 9; k++) {
        to[0] = to[k - 1] * 0.5f + from[k];
        to[k] = from[k] / to[0];
    }
    return y;
}
"""
extension = load_inline(name="twice", cpp_sources=source, functions=["run"], extra_cflags=["-O3"])

class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x)
'''
ROOFLINE = Roofline(bytes=32768, operations=0, floor_ms=0.001, bound="memory")
GPU = Gpu(architecture="9.0", variables={}, files=(), number=0)


def kernel(source: str = TORCH) -> Kernel:
    return Kernel(source=source, language="cpp")


@pytest.mark.slow
def test_a_cpp_kernels_loops_are_named_with_their_lines() -> None:
    source = CPP
    found = KernelProfiler(Settings()).profile(PROBLEM, kernel(source), wanted="static")
    assert found.reached == ("static",)
    loop = next(each for each in found.warnings if "(for (long k = 1; k < 9; k++) {)" in each)
    line = source.splitlines().index("    for (long k = 1; k < 9; k++) {") + 1
    assert loop.startswith(f"loop in line {line} is not vectorised")
    assert found.findings[0].name == "loops not vectorised"
    assert found.isolation.startswith("limits")


@pytest.mark.slow
def test_on_a_cpu_the_timing_is_the_trace() -> None:
    found = KernelProfiler(Settings()).profile(PROBLEM, kernel(), roofline=ROOFLINE, call_ms=0.01)
    assert found.reached == ("static", "trace")
    assert found.missing == {"counters": "a CPU's counters are not read"}
    assert [each.name for each in found.findings] == ["far from the roofline"]
    assert "10% of the roofline" in found.findings[0].evidence
    assert "at least 0.03277 MB" in found.text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('no such thing')", "no such thing"),
        ("import os; os.kill(os.getpid(), 9)", "exit status"),
        ("class ModelOld: pass", "no class ModelNew"),
        ("import os; os._exit(0)", "exit status 0"),
    ],
)
def test_a_kernel_that_fails_has_no_diagnosis(source: str, said: str) -> None:
    with pytest.raises(ProfileFailed, match=said):
        KernelProfiler(Settings()).profile(PROBLEM, kernel(source))


@pytest.mark.slow
def test_a_kernel_that_never_ends_is_stopped() -> None:
    limited = KernelProfiler(Settings(), ProfileLimits(seconds=3))
    with pytest.raises(ProfileFailed, match="did not end within 3 s"):
        limited.profile(PROBLEM, kernel("import time; time.sleep(600)"))


@pytest.mark.slow
def test_a_kernel_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    place = tmp_path / "written"
    source = f"open({str(place)!r}, 'w').write('x')\n{TORCH}"
    with pytest.raises(ProfileFailed, match=r"PermissionError|Read-only file system"):
        KernelProfiler(Settings()).profile(PROBLEM, kernel(source))
    assert not place.exists()


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="profile=deep must be one of static, trace, counters, auto"):
        KernelProfiler(Settings()).profile(PROBLEM, kernel(), wanted="deep")


def test_the_heaviest_case_is_profiled() -> None:
    cases = (Case(sizes={"size": 8}, weight=0.5), Case(sizes={"size": 16}, weight=2.0))
    assert module._one_case(replace(PROBLEM, cases=cases)).overrides == {"size": 16}
    assert module._one_case(PROBLEM) is PROBLEM


class FakeNcu:
    """A program in place of `ncu`, which takes down how it was called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._program = folder / "ncu"
        monkeypatch.setattr(module, "find_ncu", lambda: str(self._program))

    def does(self, code: str) -> None:
        """`code` can use `order`, `scratch` and `report`."""
        head = f"""
import json, pathlib, shutil, sys
order = json.loads(pathlib.Path(sys.argv[-1]).read_text())
scratch, report = pathlib.Path(order["scratch"]), sys.argv[sys.argv.index("--export") + 1]
with open({str(self._folder / "calls")!r}, "a") as calls:
    calls.write(json.dumps(order) + "\\n")
"""
        (self._folder / "program.py").write_text(head + code)
        command = shlex.join([sys.executable, str(self._folder / "program.py")])
        self._program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        self._program.chmod(0o755)

    @property
    def orders(self) -> list[dict[str, object]]:
        path = self._folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNcu:
    return FakeNcu(tmp_path, monkeypatch)


def counters_of(profiler: KernelProfiler) -> object:
    return profiler._counters(replace(PROBLEM, device="cuda"), kernel(), GPU)


def test_without_permission_ncu_is_tried_once(ncu: FakeNcu) -> None:
    ncu.does("print('==ERROR== ERR_NVGPUCTRPERM - no permission'); sys.exit(1)")
    profiler = KernelProfiler(Settings())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ERR_NVGPUCTRPERM"):
            counters_of(profiler)
    assert len(ncu.orders) == 1


def test_ncus_own_reason_is_given(ncu: FakeNcu) -> None:
    ncu.does("print('==ERROR== LibraryNotLoaded'); sys.exit(9)")
    with pytest.raises(RuntimeError, match="ncu failed with exit status 9: LibraryNotLoaded"):
        counters_of(KernelProfiler(Settings()))
    assert [each["confined"] for each in ncu.orders] == [True]


@pytest.mark.slow
def test_without_confinement_only_if_that_is_allowed(ncu: FakeNcu) -> None:
    ncu.does("sys.exit(1)")
    allowed = ProfileLimits(unconfined=True)
    for settings, limits, tries in (
        (Settings(), None, [True]),
        (Settings(isolation="seccomp"), allowed, [True]),
        (Settings(), allowed, [True, False]),
    ):
        before = len(ncu.orders)
        with pytest.raises(RuntimeError, match="exit status 1"):
            counters_of(KernelProfiler(settings, limits))
        assert [each["confined"] for each in ncu.orders[before:]] == tries
    before = len(ncu.orders)
    with pytest.raises(RuntimeError, match="namespaces demands them"):
        counters_of(KernelProfiler(Settings(isolation="namespaces"), allowed))
    assert len(ncu.orders) == before


@pytest.mark.slow
def test_a_report_is_read(ncu: FakeNcu, tmp_path: Path) -> None:
    pytest.importorskip("ncu_report")
    unpack(tmp_path)
    ncu.does(f"""
(scratch / "profile.json").write_text(json.dumps({{"isolation": "limits+landlock+seccomp"}}))
shutil.copy({str(tmp_path / "no_tf32.ncu-rep")!r}, report + ".ncu-rep")
""")
    read, isolation = counters_of(KernelProfiler(Settings()))
    assert read.kernels[0].name == "matmul_kernel"
    assert isolation == "limits+landlock+seccomp"


def test_a_missing_ncu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_ncu", lambda: None)
    with pytest.raises(RuntimeError, match="ncu is missing"):
        counters_of(KernelProfiler(Settings()))


def test_nvccs_warnings_are_kept() -> None:
    text = """
ptxas info    : Compiling entry function '_Z4polyPf' for 'sm_90a'
ptxas info    : Function properties for _Z4polyPf
    376 bytes stack frame, 1464 bytes spill stores, 1616 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 376 bytes cumulative stack size
ptxas info    : Function properties for _Z5emptyv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/some/folder/cuda.cu(7): warning #177-D: variable "n" was declared but never referenced
"""
    assert cuda_warnings(text) == [
        "_Z4polyPf: 376 bytes stack frame, 1464 bytes spill stores, 1616 bytes spill loads",
        'cuda.cu(7): warning #177-D: variable "n" was declared but never referenced',
    ]
