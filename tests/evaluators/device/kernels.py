"""A problem that takes a millisecond per call, honest and altered kernels for it, and a worker's settings."""

from __future__ import annotations

from collections.abc import Callable

from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Problem
from evaluators.records.timing import Plan

SETTINGS = Settings(
    timeout_s=20.0,
    open_timeout_s=60.0,
    memory_gb=1.5,
    max_calls=8,
    threads=1,
    compile_mode="",
    plan=Plan(block_ms=4.0, precision=0.2, max_s=0.2),
    thorough_plan=Plan(block_ms=4.0, precision=0.1, max_s=0.5),
)

MODEL = """
import os, sys, time
import torch
from torch import nn

class {name}(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.depth = depth

    def forward(self, x):
        for _ in range(self.depth):
            x = torch.tanh(x @ self.weight)
        return x
"""
REFERENCE = (
    MODEL.format(name="Model")
    + """
width = 128
depth = 8

def get_inputs():
    return [torch.randn(width, width)]

def get_init_inputs():
    return [width, depth]
"""
)
HONEST = MODEL.format(name="ModelNew")
PROBLEM = Problem(name="file/tanhs", source=REFERENCE)
"""About a millisecond per call: long enough that a lie about its time cannot hide in the messages."""


def forward(body: str, *, before: str = "") -> str:
    """The honest kernel with another `forward(self, x)`, which can call `honest(self, x)`."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return (
        f"{HONEST}\n{before}\nhonest = ModelNew.forward\ndef forward(self, x):\n{lines}\n"
        "ModelNew.forward = forward\n"
    )


Judge = Callable[[str], Evaluation]


def assert_honest_is_correct(judge: Judge) -> Evaluation:
    found = judge(HONEST)
    assert found.status is Status.CORRECT, found.log
    return found
