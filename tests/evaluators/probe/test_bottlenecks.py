"""Three kernels limited by their stores, their loads and their arithmetic: each is told from the others by
three probes, which leave out one of the three."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from evaluators.build.builder import build
from evaluators.device.settings import Settings
from evaluators.device.worker import Worker
from evaluators.records.probe import ProbeTimes
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import Plan

REFERENCE = """
import torch
from torch import nn

n = 2**20

class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x)

def get_inputs():
    return [torch.rand(n)]

def get_init_inputs():
    return []
"""
CPP = '''
import ctypes, pathlib, subprocess
import torch
from torch import nn

code = r"""
extern "C" void run(const float* in, float* out, unsigned n) {
    for (unsigned i = 0; i < n / 16; i++) {
        float v = i;
        for (unsigned k = 0; k < LOADS; k++) v += in[(i * 2654435761u + k * 40503u) % n];
        for (unsigned k = 0; k < OPERATIONS; k++) v = v * 0.999f + 0.5f;
        for (unsigned k = 0; k < STORES; k++) out[(i * 2654435761u + k * 40503u) % n] = v;
        asm volatile("" ::"x"(v));  // or the compiler would leave out what is not stored
    }
}
"""
library = pathlib.Path(__file__).with_name("run.so")
if not library.exists():
    defines = ["-DLOADS={loads}", "-DOPERATIONS={operations}", "-DSTORES={stores}"]
    command = ["g++", "-O2", "-shared", "-fPIC", *defines, "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=code.encode(), check=True)
run = ctypes.CDLL(str(library)).run

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        run(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_uint(x.numel()))
        return y
'''
TRITON = """
import torch, triton
import triton.language as tl
from torch import nn

@triton.jit
def run(x, y, n, LOADS: tl.constexpr, STORES: tl.constexpr, operations, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = i.to(tl.float32)
    for k in tl.static_range(LOADS):
        v += tl.load(x + (i * 97 + k * 40503) % n)
    for k in range(operations):
        v = v * 0.999 + 0.5
    for k in tl.static_range(STORES):
        tl.store(y + (i * 97 + k * 40503) % n, v)
    tl.store(y + i, v, mask=v == -12345.5)  # never; or the compiler would leave out what is not stored

class ModelNew(nn.Module):
    def forward(self, x):
        y, n = torch.empty_like(x), x.numel()
        run[(n // 4096,)](x, y, n, LOADS={loads}, STORES={stores}, operations={operations}, BLOCK=1024)
        return y
"""
MUCH = {"cpu": {"loads": 16, "operations": 200, "stores": 16}}
MUCH["cuda"] = {"loads": 16, "operations": 20000, "stores": 16}
SETTINGS = Settings(
    timeout_s=60.0, compile_mode="", threads=1, max_calls=4, plan=Plan(block_ms=4.0, precision=0.2, max_s=0.2)
)
TRIES = 3
"""Of a set of probes, because a busy machine slows some of them."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.exhaustive), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def test_three_probes_find_what_limits_a_kernel(tmp_path: Path, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    template, language = (CPP, "cpp") if device == "cpu" else (TRITON, "triton")
    sizes = {} if device == "cpu" else {"n": 2**26}
    problem = Problem(name="file/tanh", source=REFERENCE, device=device, overrides=sizes)
    worker = Worker(root=tmp_path, settings=SETTINGS)

    def times(counts: dict[str, int]) -> ProbeTimes:
        source = template
        for name, count in counts.items():
            source = source.replace("{" + name + "}", str(count))
        kernel = Kernel(source=source, language=language)
        architecture = worker.open(problem).get("architecture", "")
        built = build(problem, kernel, root=tmp_path, architecture=architecture, timeout_s=180.0)
        assert built.status is None, built.log
        found = worker.probe(problem, kernel, built.archive)
        assert found.times is not None, found
        return found.times

    def remaining(limit: str) -> dict[str, float]:
        """The part of a kernel's time that is left, by what a probe of it leaves out. Eager's time in both
        sessions takes out how busy the machine was."""
        counts = dict.fromkeys(MUCH[device], 1) | {limit: MUCH[device][limit]}
        whole = times(counts).ratio
        return {name: whole / times(counts | {name: 0}).ratio for name in counts}

    with contextlib.closing(worker):
        for limit in MUCH[device]:
            for _ in range(TRIES):
                left = remaining(limit)
                told = left[limit] < 0.4 and all(left[name] > 0.6 for name in left if name != limit)
                if told:
                    break
            assert told, f"limited by {limit}: {left}"
