"""Which of several planted kernels are delivered."""

from __future__ import annotations

import json
import logging
import runpy
from pathlib import Path

import pytest
import torch

from evaluators.records.problem import Kernel
from search.optimize import __main__ as optimize
from search.optimize.__main__ import main
from search.optimize.extraction.record import Extraction
from search.optimize.installation.package import load_package
from search.optimize.profiling import profile as profiling
from search.optimize.profiling.record import Profile
from search.optimize.searching import AcceptedKernel
from search.optimize.stages import OptimizeRun
from search.optimize.verification.record import Verification
from tests.search.optimize.example_models import FAST, equally_long

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        between = torch.tanh, torch.sigmoid, torch.exp, torch.sin, torch.cos
        for layer, function in zip(self.layers, between):
            x = function(layer(x))
        return self.layers[-1](x)

def get_inputs():
    return [torch.randn(4000, 8)]

def get_init_inputs():
    return []
"""
FUNCTIONS = ["cos", "exp", "sigmoid", "sin", "tanh"]
SLOW = "0 * sum(torch.ones(99).sum() for _ in range(9999)) +"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(profiling, "peaks_of", lambda device, cache: FAST)
    monkeypatch.setattr(profiling, "measure", equally_long)
    (tmp_path / "five.py").write_text(SOURCE)
    return tmp_path


def delivered(monkeypatch: pytest.MonkeyPatch, planted: dict[str, str]) -> tuple[Verification, list[str]]:
    """The verification, and the functions whose kernels are delivered, of five that claim to be twice as fast
    as eager: the problems' own code, and before what those of some functions return the text that is
    planted."""

    async def find_kernels(
        run: OptimizeRun, profile: Profile, traced_models: object, found: Extraction
    ) -> object:
        kernels = {}
        for each in found.problems:
            if function := next((name for name in FUNCTIONS if name in each.name), ""):
                text = (run.folder / each.file).read_text().replace("class Model(", "class ModelNew(")
                text = text.replace("return ", f"return {planted.get(function, '')} ", 1)
                kernel = Kernel(source=text, language="triton")
                kernels[each.name] = AcceptedKernel(
                    kernel=kernel, speedup=2.0, low=1.9, high=2.1, origin="search"
                )
        return kernels

    monkeypatch.setattr(optimize, "find_kernels", find_kernels)
    given = ["model=five.py", "device=cpu", "iterations=1", "report=false", "compile=none", "turns=6"]
    assert main([*given, "compared=2", "library.use=false", "least_gain=0.0001", "targets=40"]) == 0
    [folder] = Path("outputs/optimize").iterdir()
    verification = Verification.read(folder / "verification.json")
    tried = [*verification.in_place["optimized"], *verification.left_out]
    assert {name for name in FUNCTIONS for each in tried if name in each} == {*FUNCTIONS}
    listed = json.loads((folder / "optimized" / "manifest.json").read_text())["kernels"]
    return verification, [name for name in FUNCTIONS for each in listed if name in each["name"]]


def difference() -> float:
    """The largest difference between the outputs of the delivered and the original model."""
    [folder] = Path("outputs/optimize").iterdir()
    model = runpy.run_path("five.py")["Model"]().eval()
    inputs = torch.randn(4000, 8)
    with torch.no_grad():
        wanted = model(inputs)
        found = load_package(folder).load(model)(inputs)
        assert not type(model).plan.fallbacks
        return float((found - wanted).abs().max())


@pytest.mark.slow
def test_of_five_kernels_the_wrong_one_is_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    verification, kernels = delivered(monkeypatch, {"exp": "1.01 *"})
    assert verification.passes and "exp" not in kernels
    [name] = [name for name in verification.left_out if "exp" in name]
    assert "the outputs differ with it" in verification.left_out[name]
    assert difference() < 1e-5


@pytest.mark.slow
def test_a_kernel_that_is_slower_in_its_place_is_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    verification, kernels = delivered(monkeypatch, {"sin": SLOW})
    assert verification.passes and "sin" not in kernels
    [name] = [name for name in verification.left_out if "sin" in name]
    assert "the model is slower with it" in verification.left_out[name]
    assert verification.in_place["optimized"][name][0] < 0.5
    assert verification.speedup("optimized")[0] > 0.2
    assert difference() < 1e-5
