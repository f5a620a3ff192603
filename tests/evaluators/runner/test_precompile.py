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
    return x.dtype != torch.bfloat16

class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert supports(x)
        out = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 128),)](out, x, x.numel(), BLOCK=128)
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


@pytest.mark.slow
def test_all_cases_that_are_supported_are_compiled(tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "reference.py").write_text(REFERENCE)
    done = subprocess.run(
        [sys.executable, "-c", COMPILES, str(tmp_path / "kernel.py"), str(tmp_path / "reference.py")],
        env=dict(os.environ, TRITON_CACHE_DIR=str(tmp_path / "cache")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    binaries = list((tmp_path / "cache").glob("*/double.cubin"))
    assert len(binaries) == 4, "two types, each for sizes that 16 divides and for others"
