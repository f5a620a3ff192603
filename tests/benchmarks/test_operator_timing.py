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
