"""Trusted kernels are prepared, compared with the reference, and timed in turn."""

from __future__ import annotations

import multiprocessing

import torch

from benchmarks.operator_timing import ROUNDS, ReadyKernels
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel, Problem

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return torch.softmax(x, -1)
def get_inputs(): return [torch.randn(64, 32)]
def get_init_inputs(): return []
"""
KERNEL = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x): return {}
"""
FORMS = {
    "right": "torch.exp(x - x.amax(-1, True)) / torch.exp(x - x.amax(-1, True)).sum(-1, True)",
    "wrong": "torch.softmax(x, 0)",
    "broken": "nowhere(x)",
}


def test_correct_kernels_are_timed_and_others_give_a_reason() -> None:
    kernels = {name: Kernel(source=KERNEL.format(form), language="cpp") for name, form in FORMS.items()}
    with torch.no_grad():
        ready = ReadyKernels(
            Problem(name="file/softmax", source=SOURCE), kernels, "", multiprocessing.get_context().Lock()
        )
        found = ready.evaluations()
    assert {name: each.status for name, each in found.items()} == {
        "right": Status.CORRECT,
        "wrong": Status.INCORRECT,
        "broken": Status.CRASHED,
    }
    timing = found["right"].timing
    assert timing is not None and len(timing.kernel_samples_ms) == len(timing.eager_samples_ms) == ROUNDS
    assert "normwise error" in found["wrong"].log
    assert found["broken"].log == "NameError: name 'nowhere' is not defined"


NORM = """
import torch
{before}
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
    def forward(self, x): return {form}
def get_inputs(): return [torch.randn(64, 32)]
def get_init_inputs(): return []
"""
DOUBLED = """
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, gradient): return gradient * 2
"""


def test_both_passes_are_compared_and_timed() -> None:
    def norm(name: str, form: str, before: str = "") -> str:
        return NORM.format(name=name, form=form, before=before)

    forms = {
        "right": norm("ModelNew", "self.norm(x)"),
        "by formula": norm(
            "ModelNew",
            "(x - x.mean(-1, True)) * (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt() "
            "* self.norm.weight + self.norm.bias",
        ),
        "a wrong gradient": norm("ModelNew", "self.norm(Doubled.apply(x))", DOUBLED),
        "no gradient": norm("ModelNew", "self.norm(x).detach()"),
    }
    kernels = {name: Kernel(source=source, language="cpp") for name, source in forms.items()}
    problem = Problem(name="file/norm", source=norm("Model", "self.norm(x)"), backward=True)
    with torch.no_grad():
        found = ReadyKernels(problem, kernels, "", multiprocessing.get_context().Lock()).evaluations()
    assert {name: each.status for name, each in found.items()} == {
        "right": Status.CORRECT,
        "by formula": Status.CORRECT,
        "a wrong gradient": Status.INCORRECT,
        "no gradient": Status.CRASHED,
    }
    assert "the gradient of x: " in found["a wrong gradient"].log
    right, formula = found["right"].passes, found["by formula"].passes
    assert right is not None and formula is not None
    assert right.saved_bytes == right.eager_saved_bytes == 2 * 64 * 4 < formula.saved_bytes
    timing = found["by formula"].timing
    assert timing is not None and 0 < formula.forward_ms < timing.kernel_ms
