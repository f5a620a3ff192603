"""Triton's kernels are compiled in the build, for all cases, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(out, x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)

def supports(x):
    return x.is_cuda and x.dtype != torch.bfloat16

class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert supports(x) and x.device.type == "cuda" and x.get_device() == 0
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        most = torch.cuda.get_device_properties(x.device).multi_processor_count
        with torch.cuda.device(x.device):
            double[(min(triton.cdiv(x.numel(), 128), most),)](out, x, x.numel(), BLOCK=128)
        return out
"""
REFERENCE = """
import torch
n = 32

class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x

def get_inputs():
    return [torch.randn(n)]

def get_init_inputs():
    return []
"""
COMPILES = """
import importlib.util, sys
from pathlib import Path
from evaluators.records.problem import Case, Problem
from evaluators.runner.precompile import compile_ahead
path, reference = map(Path, sys.argv[1:])
spec = importlib.util.spec_from_file_location("kernel", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
types = ("float32", "float16", "bfloat16")
cases = tuple(Case(sizes={"n": n}, dtype=each) for each in types for n in (32, 64, 33))
compile_ahead(module, Problem(name="double", source=reference.read_text(), cases=cases), "9.0")
"""


def compiled(folder: Path, kernel: str, script: str) -> Path:
    """Triton's cache after the script, which gets the files of the kernel and of the reference."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    (folder / "kernel.py").write_text(kernel)
    (folder / "reference.py").write_text(REFERENCE)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder / "kernel.py"), str(folder / "reference.py")],
        env=dict(os.environ, TRITON_CACHE_DIR=str(folder / "cache")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "cache"


@pytest.mark.slow
def test_all_cases_that_are_supported_are_compiled(tmp_path: Path) -> None:
    binaries = list(compiled(tmp_path, KERNEL, COMPILES).glob("*/double.cubin"))
    assert len(binaries) == 4, "two types, each for sizes that 16 divides and for others"


TRAINS = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(out, x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)

@triton.jit
def double_gradient(out, x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 128),)](out, x, x.numel(), BLOCK=128)
        return out

    @staticmethod
    def backward(ctx, given):
        out = torch.empty_like(given)
        double_gradient[(triton.cdiv(given.numel(), 128),)](out, given, given.numel(), BLOCK=128)
        return out

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Double.apply(x)
"""


@pytest.mark.slow
def test_the_kernels_of_a_backward_pass_are_compiled_too(tmp_path: Path) -> None:
    found = compiled(tmp_path, TRAINS, COMPILES.replace('name="double", ', 'name="double", backward=True, '))
    assert len([*found.glob("*/double.cubin")]) == len([*found.glob("*/double_gradient.cubin")]) == 6
