"""What a judge process imports: each second of it is paid for every problem that is opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPENS_AND_JUDGES = """
import sys
import torch
from evaluators.records.problem import Problem
from evaluators.reference.answer import Draw
from evaluators.reference.cost.operation_count import count
from evaluators.reference.reference_model import ReferenceModel
from evaluators.reference.validation import examine

source = '''
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))
    def forward(self, x): return (x @ self.weight).tanh()
def get_inputs(): return [torch.randn(16, 8)]
def get_init_inputs(): return []
'''
reference = ReferenceModel(Problem(name="file/tanh", source=source))
assert count(reference.eager, reference.sample, reference.outputs).operations > 0
assert examine(reference) == []
found = reference.judge([torch.zeros(16, 8)], reference.answer(Draw.fresh()))
assert "the first at [0, 0]" in found.problem, found.problem
assert not {"sympy", "torch._dynamo"} & set(sys.modules)
"""


@pytest.mark.slow
def test_opening_a_problem_and_judging_by_it_does_without_a_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPENS_AND_JUDGES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


TRAINS = """
import sys
import torch
from evaluators.reference.gradients import with_gradients

model = with_gradients(torch.nn.Linear(3, 2))
output, gradients = model(torch.ones(4, 3), [torch.ones(4, 2)])
assert [each.shape for each in gradients] == [(4, 3), (2, 3), (2,)]
assert not {"sympy", "torch._dynamo"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_backward_pass_does_without_a_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
