"""Configurations of real C++ kernels, on this machine's CPU."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from evaluators.records.configurations import judged_kernel
from evaluators.records.evaluation import Evaluation, Stage, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from tests.evaluators.device.kernels import SETTINGS

PROBLEM = Problem(
    name="file/transpose",
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return (x.t() * 2).contiguous()

def get_inputs():
    return [torch.randn(1024, 1024)]

def get_init_inputs():
    return []
""",
)
TILED = Kernel(
    language="cpp",
    source='''
import ctypes
import subprocess
from pathlib import Path

import torch
from torch import nn

CONFIGS = {"TILE": [1, 32, 3, 0], "OWN": [True]}
TILE = 1
OWN = True
CODE = """
_Static_assert(TILE > 0, "no tile");
void run(const float* x, float* y, long n) {
    for (int again = 0; again < (TILE == 1 ? 6 : 1); again++)  /* slower on the busiest machine, too */
        for (long i = 0; i + TILE <= n; i += TILE)
            for (long j = 0; j + TILE <= n; j += TILE)
                for (long a = i; a < i + TILE; a++)
                    for (long b = j; b < j + TILE; b++) y[a * n + b] = 2 * x[b * n + a];
}
"""
if not Path("run.so").exists():
    Path("run.c").write_text(CODE)
    flags = ["-O2", f"-DTILE={TILE}", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "run.c", "-o", "run.so"], check=True)
run = ctypes.CDLL("./run.so").run
run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]


class ModelNew(nn.Module):
    def forward(self, x):
        if not OWN:
            return (x.t() * 2).contiguous()
        y = torch.zeros_like(x)
        run(x.data_ptr(), y.data_ptr(), x.shape[0])
        return y
''',
)
CHEAT = replace(
    TILED,
    source=TILED.source.replace("[1, 32, 3, 0]", "[1]")
    .replace("[True]", "[True, False]")
    .replace("TILE == 1 ? 6 : 1", "8"),
)


@pytest.mark.slow
def test_the_best_tile_is_found_and_a_cheat_that_wins_is_rejected() -> None:
    own_work = replace(PROBLEM, libraries="no_library")

    async def verdicts() -> list[Evaluation]:
        with Pool(LocalHost(settings=SETTINGS, on_gpu=False)) as pool:
            return [await pool.evaluate(PROBLEM, TILED), await pool.evaluate(own_work, CHEAT)]

    found, cheats = asyncio.run(verdicts())
    assert found.status is Status.CORRECT, found.log
    assert found.timing is not None
    first, second, *excluded = found.configurations
    assert first.chosen and (first.values["TILE"], second.values["TILE"]) == (32, 1)
    assert {each.values["TILE"]: each.cause.partition(":")[0] for each in excluded} == {
        3: "incorrect",
        0: "compile_error",
    }
    assert found.stages_s[Stage.CONFIGURATIONS] > 0
    plain = judged_kernel(TILED, found).source
    assert "TILE = 32\n" in plain and "CONFIGS" not in plain

    # A library does the work of the fastest, which only the full verdict looks at.
    assert {each.values["OWN"]: not each.cause for each in cheats.configurations} == {
        True: True,
        False: False,
    }
    assert cheats.status is Status.REJECTED, cheats
