"""Operators that draw random numbers: what holds of them, and the mistakes that are found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem, reference_kernel
from evaluators.reference import random_outputs
from evaluators.reference.containers import map_tensors
from evaluators.reference.inputs.strided_layouts import clone
from evaluators.reference.random_outputs import Evidence
from evaluators.reference.reference_model import ReferenceModel
from evaluators.reference.validation import examine
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from evaluators.suites import operators
from evaluators.suites.operators import load_operator
from evaluators.suites.traced.files import TRACES
from tests.evaluators.device.kernels import SETTINGS

DROPOUT = "aten.native_dropout.default"
CALLS = {
    DROPOUT: "((T([64, 32], bf16), 0.1, True), {})",
    "aten.dropout_.default": "((T([64, 32], f32), 0.5, True), {})",
    "aten.bernoulli.default": "((T([64, 32], f32),), {})",
    "aten.bernoulli_.float": "((T([64, 32], f16), 0.2), {})",
    "aten.normal.Tensor_Tensor": "((T([64, 32], f32), T([64, 32], f32)), {})",
    "aten.normal_.default": "((T([64, 32], bf16), 1.0, 3.0), {})",
    "aten.log_normal_.default": "((T([64, 32], f32),), {})",
    "aten.exponential_.default": "((T([64, 32], f16), 2.0), {})",
    "aten.cauchy_.default": "((T([64, 32], f32),), {})",
    "aten.uniform_.default": "((T([64, 32], bf16), -2.0, 3.0), {})",
    "aten.rand_like.default": "((T([64, 32], f16),), {})",
    "aten.randint_like.low_dtype": "((T([64, 32], f32), 3, 9), {})",
    "aten.random_.from": "((T([64, 32], i64), 3, 9), {})",
    "aten.geometric_.default": "((T([64, 32], f32), 0.3), {})",
    "aten.multinomial.default": "((T([64, 10], f32), 4), {})",
    "aten.poisson.default": "((T([64, 32], f32),), {})",
    "aten.rrelu_with_noise.default": "((T([64, 32], f32), T([64, 32], f32), 0.1, 0.3, True), {})",
    "aten.rrelu_with_noise_.default": "((T([64, 32], f32), T([64, 32], f32), 0.1, 0.3, True), {})",
}
NO_TENSORS = {
    "aten.randperm.default": "((99,), {})",
    "aten.randn.default": "(([64, 32],), {})",
    "aten.rand.default": "(([64, 32],), {})",
    "aten.randint.low": "((3, 9, [64, 32]), {})",
}
Kernel_ = Callable[..., Any]


@pytest.fixture(autouse=True)
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.txt"
    calls = {**CALLS, **NO_TENSORS}
    file.write_text("".join(f"Operator: {each}\ncnt: 1, {text}\n" for each, text in calls.items()))
    monkeypatch.setenv(TRACES, str(file))
    operators._traced.cache_clear()


def problem_of(operator: str) -> Problem:
    return load_operator(f"operators/traced/{operator}", libraries="any", floor=False)


def found_in(reference: ReferenceModel, kernel: Kernel_) -> str:
    """What is wrong with a kernel, a function of the operator's tensors."""
    assert reference.random_checks is not None
    evidence = Evidence(reference.random_checks)
    while not evidence.enough:
        for draw in reference.own_draws(8):
            answer = reference.answer(draw)
            given = map_tensors(clone, answer.inputs)
            outputs = kernel(*given)
            outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
            outputs += [given[number] for number in reference.changed_inputs]
            assert answer.inputs is not None
            evidence.add(answer.inputs, outputs, answer.eager)
    return evidence.comparison().problem


@pytest.mark.slow
@pytest.mark.parametrize("operator", [*CALLS, *NO_TENSORS])
def test_an_operator_passes_against_itself(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_outputs, "ENOUGH", 2**12)
    reference = ReferenceModel(problem_of(operator))
    assert examine(reference) == []
    assert reference.untried["other distributions"] == "outputs are random"
    assert not found_in(reference, reference.eager)


def dropout(
    x: torch.Tensor, keep: float = 0.9, scale: float = 1 / 0.9, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """With numbers of its own, in float32 as a kernel on a GPU has them."""
    generator = torch.Generator()
    generator.manual_seed(seed) if seed is not None else generator.seed()
    kept = torch.rand(x.shape, generator=generator) < keep
    return torch.where(kept, x.float() * scale, 0.0).to(x.dtype), kept


def keeps_one(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, kept = dropout(x)
    out[0] = torch.where(kept[0], out[0], 1.0)
    return out, kept


@pytest.mark.slow
def test_an_honest_dropout_passes_200_times_of_200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_outputs, "ENOUGH", 2**13)
    reference = ReferenceModel(problem_of(DROPOUT))
    assert [found_in(reference, dropout) for _ in range(200)] == [""] * 200


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (keeps_one, "other values are 0"),
        (lambda x: (x.clone(), torch.ones_like(x).bool()), "kept values are the input"),
        (lambda x: dropout(x, keep=1.0), "share of values that are kept: 1 of"),
        (lambda x: dropout(x, keep=0.88), "share of values that are kept: 0.8"),
        (lambda x: dropout(x, keep=0.92), "share of values that are kept: 0.9"),
        (lambda x: dropout(x, scale=1.0), "kept values are the input"),
        (lambda x: dropout(x, scale=1.12), "kept values are the input"),
        (lambda x: dropout(x, seed=7), "which values are kept: two calls give the same"),
        (lambda x: (dropout(x)[0], dropout(x)[1]), "kept values are the input"),
        (lambda x: tuple(torch.zeros_like(each) for each in dropout(x)), "share of values"),
    ],
)
def test_mistakes_in_a_dropout_are_found(kernel: Kernel_, why: str) -> None:
    found = found_in(ReferenceModel(problem_of(DROPOUT)), kernel)
    assert why in found


def uniform(x: torch.Tensor, low: float = -2.0, high: float = 3.0) -> torch.Tensor:
    return x.copy_(torch.rand(x.shape) * (high - low) + low)


def rrelu(
    x: torch.Tensor, noise: torch.Tensor, upper: float = 0.3, left: float | None = None
) -> torch.Tensor:
    noise.copy_(torch.where(x > 0, 1.0, 0.1 + (upper - 0.1) * torch.rand(x.shape)))
    return x * (noise if left is None else torch.where(x > 0, 1.0, left))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "right", "wrong", "why"),
    [
        (
            "aten.normal.Tensor_Tensor",
            lambda mean, std: mean + std * torch.randn(mean.shape),
            lambda mean, std: mean + 1.1 * std * torch.randn(mean.shape),
            "the distribution",
        ),
        (
            "aten.normal.Tensor_Tensor",
            torch.normal,
            lambda mean, std: torch.normal(mean, std.flip(0)),
            "the distribution",
        ),
        (
            "aten.normal_.default",
            lambda x: x.copy_(1 + 3 * torch.randn(x.shape)),
            lambda x: x.copy_(1 + 9**0.25 * torch.randn(x.shape)),
            "the distribution",
        ),
        (
            "aten.normal_.default",
            lambda x: x.normal_(1, 3),
            lambda x: torch.randn_like(x) * 3 + 1,
            "the returned and the changed tensor are equal",
        ),
        (
            "aten.bernoulli.default",
            lambda p: (torch.rand(p.shape) < p).to(p.dtype),
            lambda p: torch.bernoulli(p.flip(0)),
            "the distribution",
        ),
        ("aten.uniform_.default", uniform, lambda x: uniform(x, -2, 3.1), "lies in"),
        ("aten.uniform_.default", uniform, lambda x: uniform(x, -1.8, 3), "the distribution"),
        (
            "aten.multinomial.default",
            lambda p: (p.log() - torch.empty_like(p).exponential_().log()).topk(4).indices,
            lambda p: (p > 0).to(p.dtype).multinomial(4),  # a weight of 0 is another mistake
            "weight of the output",
        ),
        (
            "aten.multinomial.default",
            lambda p: p.multinomial(4),
            lambda p: p.multinomial(4, replacement=True),
            "has no category twice",
        ),
        (
            "aten.random_.from",
            lambda x: x.copy_(torch.randint(3, 9, x.shape)),
            lambda x: x.copy_(torch.randint(3, 10, x.shape)),
            "lies in [3, 8] and is whole",
        ),
        (
            "aten.poisson.default",
            lambda rate: torch.poisson(rate.double()).to(rate.dtype),
            lambda rate: torch.poisson(1.3 * rate),
            "the distribution",
        ),
        (
            "aten.poisson.default",
            torch.poisson,
            lambda rate: torch.poisson(rate.flip(0)),
            "the distribution",
        ),
        (
            "aten.rrelu_with_noise.default",
            rrelu,
            lambda x, noise: rrelu(x, noise, left=0.2),
            "the output is the input times the noise",
        ),
        (
            "aten.rrelu_with_noise.default",
            rrelu,
            lambda x, noise: rrelu(x, noise, upper=0.28),
            "the noise: the distribution",
        ),
        (
            "aten.rrelu_with_noise.default",
            rrelu,
            lambda x, noise: rrelu(x, noise, upper=0.31),
            "the noise is 1 or in its range",
        ),
    ],
)
def test_mistakes_in_other_operators_are_found(
    operator: str, right: Kernel_, wrong: Kernel_, why: str
) -> None:
    reference = ReferenceModel(problem_of(operator))
    assert found_in(reference, right) == ""
    assert why in found_in(reference, wrong)


HONEST = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, p, train):
        super().__init__()
        self.keep = 1 - p

    def forward(self, x):
        kept = torch.rand(x.shape, device=x.device) < self.keep
        return torch.where(kept, x.float() / self.keep, 0.0).to(x.dtype), kept
"""
REPEATS = HONEST.replace("        kept =", "        torch.manual_seed(0)\n        kept =")
LATER = HONEST.replace("self.keep = 1 - p", "self.keep = 1 - p; self.calls = 0").replace(
    "        kept =",
    "        self.calls += 1\n        if self.calls > 60: torch.manual_seed(0)\n        kept =",
)


@pytest.mark.slow
def test_a_kernel_is_judged_on_fresh_numbers() -> None:
    problem = problem_of(DROPOUT)
    sources = (HONEST, reference_kernel(problem).source, REPEATS, LATER)

    async def verdicts() -> list[Evaluation]:
        with Pool(LocalHost(settings=SETTINGS, on_gpu=False)) as pool:
            kernels = [Kernel(source=each, language="cpp") for each in sources]
            return await asyncio.gather(*(pool.evaluate(problem, each) for each in kernels))

    right, eager, repeats, later = asyncio.run(verdicts())
    assert right.status is Status.CORRECT, right.log
    assert eager.status is Status.CORRECT, eager.log
    assert right.correctness is not None and right.correctness.statistic is not None
    assert 0 < right.correctness.statistic < 1 and right.correctness.spread is None
    assert repeats.status is Status.INCORRECT and "calls are not independent" in repeats.log
    assert later.status is Status.INCORRECT and "calls are not independent" in later.log
