"""Chains of calls: what an answer does to the next call's inputs, and that both sides do the same."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from evaluators.records.problem import Problem
from evaluators.reference.inputs.dependent_calls import can_stir, shares_of, stir
from evaluators.runner.messages import Load, RunCalls
from evaluators.runner.runner_process import RunnerSession
from evaluators.runner.shared_buffers import ALIGNMENT, Layout, create_shared

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, w, scale):
        return torch.tanh(x @ w) * scale

def get_inputs():
    return [torch.randn(6, 5), torch.randn(5, 5), 2.0]

def get_init_inputs():
    return []
"""


def stirred(*inputs: Any, answer: torch.Tensor) -> list[Any]:
    copies = [each.clone() if torch.is_tensor(each) else each for each in inputs]
    stir(copies, shares_of([answer]))
    return copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_shares_tell_the_elements_of_an_answer_apart(dtype: torch.dtype) -> None:
    answer = (10 * torch.randn(50, 40)).relu().to(dtype)
    shares = shares_of([torch.empty(0), answer])
    assert (shares.dtype, shares.shape) == (torch.float32, (2000,))
    assert ((shares >= 0) & (shares <= 1)).all()
    assert shares.std() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("elements", [2, 3, 4096, 200_001])
def test_a_short_answer_is_repeated(elements: int) -> None:
    x, answer = torch.rand(elements) + 1, torch.tensor([1.0, 2.0, 3.0])
    (found,) = stirred(x, answer=answer)
    shares = shares_of([answer]).repeat(elements)[:elements]
    torch.testing.assert_close(found, x * (1 - shares / 2))


@pytest.mark.parametrize("shares", [1, 7, 8192])
def test_a_link_takes_few_launches_however_short_the_answer(shares: int) -> None:
    class Counting(TorchDispatchMode):
        launches = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.launches += func is torch.ops.aten.addcmul_.default
            return func(*args, **(kwargs or {}))

    with Counting() as counted:  # type: ignore[no-untyped-call]
        stir([torch.rand(2048, 2048), torch.rand(5)], torch.rand(shares))
    assert counted.launches <= 4


def test_no_answer_brings_about_the_shares_it_likes() -> None:
    """What a tolerance of one in a hundred leaves free changes them as little."""
    answer = torch.randn(4096)
    near = shares_of([answer * (1 + 0.01 * torch.rand(4096))])
    torch.testing.assert_close(near, shares_of([answer]), atol=0.01, rtol=0)
    assert (shares_of([torch.randn(4096)]) - near).abs().mean() > 0.1


@pytest.mark.parametrize(
    "answer", [torch.ones(7), torch.tensor(3.0), torch.full((4,), math.inf), torch.zeros(2)]
)
def test_an_answer_without_differences_gives_one_share(answer: torch.Tensor) -> None:
    assert shares_of([answer]).unique().tolist() == [0.5]


def test_infinite_and_missing_numbers_do_not_spread() -> None:
    answer = torch.randn(100)
    answer[3], answer[5] = math.nan, -math.inf
    assert shares_of([answer]).isfinite().all()


@pytest.mark.slow
def test_floating_inputs_change_and_keep_signs_and_zeros() -> None:
    x, ids, scalar = torch.randn(300, 700).relu(), torch.arange(4), torch.tensor(2.0)
    a, b, c = stirred(x, ids, scalar, answer=torch.randn(33))
    assert ((a <= x) & (a >= 0.5 * x)).all()
    assert (a[x > 0] != x[x > 0]).float().mean() > 0.9
    assert torch.equal(b, ids), "places stay"
    assert 1.0 < c.item() < 2.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_do_not_depend_on_the_default(dtype: torch.dtype) -> None:
    x, answer = torch.randn(99).to(dtype), torch.randn(9).to(dtype)
    (expected,) = stirred(x, answer=answer)
    torch.set_default_dtype(torch.float16)
    try:
        (found,) = stirred(x, answer=answer)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype is dtype
    assert torch.equal(found, expected)


def test_only_floating_numbers_can_be_stirred() -> None:
    assert can_stir([torch.zeros(1), torch.arange(3)])
    assert not can_stir([torch.arange(3), torch.zeros(0)])


def test_8_bit_floats_which_have_no_arithmetic_stay() -> None:
    bits, scale = torch.ones(8).to(torch.float8_e4m3fn), torch.ones(8)
    assert not can_stir([bits])
    stir([bits, scale], torch.rand(8) + 0.1)
    assert bits.float().eq(1).all() and scale.ne(1).all()


def test_a_tensor_is_stirred_as_it_lies_in_memory() -> None:
    x, answer = torch.randn(4, 6), torch.randn(24)
    (turned,) = stirred(x.t(), answer=answer)
    assert torch.equal(turned.t(), stirred(x, answer=answer)[0])


class Mailbox:
    """Takes the runner's answers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


@pytest.mark.slow
def test_a_runner_makes_a_chain_as_the_referee_expects_it() -> None:
    def tanhs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w) * 2.0

    calls = 4
    x, w = torch.randn(6, 5), torch.randn(5, 5)
    inputs, outputs = Layout.of([x, w], calls), Layout.of([x], calls)
    memory, buffers, fd = create_shared(inputs.bytes + outputs.bytes + ALIGNMENT, "cpu")
    drawn = [[torch.randn(6, 5), torch.randn(5, 5)] for _ in range(calls)]
    for places, values in zip(inputs.views(memory), drawn, strict=True):
        for place, value in zip(places, values, strict=True):
            place.copy_(value)
    order = Load(
        problem=Problem(name="test", source=SOURCE),
        seed=1,
        buffers=buffers,
        inputs=inputs,
        outputs=outputs,
        arguments={"list": [{"tensor": 0}, {"tensor": 1}, {"value": 2.0}]},
    )
    session = RunnerSession({"role": "eager"}, order, os.dup(fd))
    os.close(fd)
    mailbox: Any = Mailbox()
    session.run(RunCalls(calls=[2, 0, 3, 1], chain=True), mailbox)
    assert mailbox.sent[-1]["op"] == "done"
    answers = outputs.views(memory[inputs.bytes :])
    assert torch.equal(answers[2][0], tanhs(*drawn[2])), "the first is as it was"
    for before, call in [(2, 0), (0, 3), (3, 1)]:
        expected = [each.clone() for each in drawn[call]]
        stir(expected, shares_of(answers[before]))
        torch.testing.assert_close(answers[call][0], tanhs(*expected))
        assert not torch.allclose(answers[call][0], tanhs(*drawn[call])), "who leaves it out is wrong"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_stirred_stays_in_its_range(dtype: torch.dtype) -> None:
    """On a GPU some operators assert on the device that their inputs are probabilities."""
    (found,) = stirred(torch.tensor([0.0, 0.3, 1.0], dtype=dtype), answer=torch.randn(3))
    assert ((found >= 0) & (found <= 1)).all()
