"""Inputs drawn by a CUDA graph equal those drawn without one; draws that cannot be recorded stay as
before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from evaluators.judge.graphed_draws import GraphedDraws
from evaluators.records.problem import ORIGINAL, Problem
from evaluators.reference.containers import tensors_in
from evaluators.reference.inputs.usable_distributions import open_distributions
from evaluators.reference.reference_model import ReferenceModel
from evaluators.suites.operators import reference_of
from evaluators.suites.traced.grammar import call_of

REFERENCE = """
import random

import numpy
import torch


class Model(torch.nn.Module):
    def forward(self, x, scale, rows):
        return x[rows] * scale


def get_inputs():
    return [torch.randn(64, 16), SCALE, torch.randint(0, 64, (8,))]


def get_init_inputs():
    return []
"""
ON_THE_GPU, COPIED, BY_PYTHON, BY_NUMPY = (
    "torch.rand(()) + 0.5",
    "torch.tensor([0.5, 1.5] * 8)",
    "torch.full((), random.random())",
    "torch.full((), float(numpy.random.rand()))",
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def drawn(scale: str, inputs: str = "device") -> tuple[ReferenceModel, GraphedDraws]:
    return drawn_of(REFERENCE.replace("SCALE", scale), inputs)


def drawn_of(source: str, inputs: str = "device") -> tuple[ReferenceModel, GraphedDraws]:
    problem = Problem(name="test/rows", source=source, device="cuda")
    reference = ReferenceModel(replace(problem, allow_degenerate=True, inputs=inputs))
    open_distributions(reference)
    return reference, GraphedDraws(reference.draw, reference.near_names)


@pytest.mark.parametrize("scale", [ON_THE_GPU, COPIED, BY_PYTHON, BY_NUMPY])
def test_a_seed_has_the_same_inputs_as_without_a_graph(scale: str) -> None:
    reference, graphed = drawn(scale)
    assert len(reference.near_names) > 1
    for name in reference.near_names:
        for seed in (0, 1, 2**61):
            expected = tensors_in(reference.draw(seed, name))
            found = tensors_in(graphed.draw(seed, name))
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True)), (name, seed)


def test_only_draws_on_the_gpu_are_recorded() -> None:
    assert set(drawn(ON_THE_GPU)[1].recorded) == {"", "small", "shifted"}
    assert not drawn(BY_PYTHON)[1].recorded
    assert not drawn(BY_NUMPY)[1].recorded
    assert not drawn(ON_THE_GPU, ORIGINAL)[1].recorded


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        ("aten.mm.default", "((T([5, 10], f16), T([10, 5], f16, [1, 10]),), {})"),
        ("aten.index_select.default", "((T([9, 4], f32), 0, T([3], i64),), {})"),
    ],
)
def test_calls_of_operators_are_drawn_by_graphs(operator: str, text: str) -> None:
    reference, graphed = drawn_of(reference_of(operator, call_of(operator, text), 1))
    assert graphed.recorded == list(reference.near_names)
