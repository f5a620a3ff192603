"""Chains of calls: what an answer does to the next call's inputs, and that both sides do the same."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from evaluators.arena import ALIGNMENT, Layout, create_shared
from evaluators.chain import NUMBERS, number_of, stir
from evaluators.runner import Session

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


def stirred(*inputs: Any, number: int) -> list[Any]:
    copies = [each.clone() if torch.is_tensor(each) else each for each in inputs]
    stir(copies, torch.tensor(number))
    return copies


def test_every_byte_of_an_answer_counts() -> None:
    answer = torch.zeros(1024, dtype=torch.uint8)
    seen = {int(number_of(answer))}
    for place in range(0, 1024, 37):
        answer[place] = 1 + place % 251
        seen.add(int(number_of(answer)))
    assert len(seen) > 25
    assert all(0 <= number < NUMBERS for number in seen)
    assert 0 <= int(number_of(torch.full((512,), 255, dtype=torch.uint8))) < NUMBERS, (
        "poison is a number, too"
    )


def test_half_of_every_floating_tensor_shrinks() -> None:
    x, ids, scalar = torch.randn(3, 7).relu(), torch.arange(4), torch.tensor(2.0)
    a, b, c, plain = stirred(x, ids, scalar, "plain", number=NUMBERS - 1)
    assert torch.equal(a[:, 4:], x[:, 4:])
    torch.testing.assert_close(a[:, :4], x[:, :4] * 0.5, atol=0, rtol=1e-2)
    assert torch.equal(a == 0, x == 0), "zeros stay"
    assert torch.equal(b, ids)
    assert c.item() == pytest.approx(1.0, rel=1e-2)
    assert plain == "plain"
    assert torch.equal(stirred(x, number=0)[0], x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_stay_what_they_are(dtype: torch.dtype) -> None:
    (found,) = stirred(torch.ones(8, dtype=dtype), number=500)
    assert found.dtype is dtype
    assert (found[:4] < 1).all()


def test_integers_alone_move_round() -> None:
    ids, flags, one = torch.arange(10), torch.tensor([[True, False]]), torch.tensor(7)
    moved, other, same = stirred(ids, flags, one, number=3)
    assert moved.tolist() == [3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert other.tolist() == [[False, True]]
    assert same == 7


def test_a_tensor_that_is_not_contiguous() -> None:
    x = torch.randn(4, 6)
    assert torch.equal(stirred(x.t(), number=100)[0], stirred(x.t().contiguous(), number=100)[0])


class Mailbox:
    """Takes the runner's answers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def test_a_runner_makes_a_chain_as_the_referee_expects_it() -> None:
    def tanhs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w) * 2.0

    calls = 4
    x, w = torch.randn(6, 5), torch.randn(5, 5)
    inputs, outputs = Layout.of([x, w], calls), Layout.of([x], calls)
    memory, arena, fd = create_shared(inputs.bytes + outputs.bytes + ALIGNMENT, "cpu")
    drawn = [[torch.randn(6, 5), torch.randn(5, 5)] for _ in range(calls)]
    for places, values in zip(inputs.views(memory), drawn, strict=True):
        for place, value in zip(places, values, strict=True):
            place.copy_(value)
    problem = {"source": SOURCE, "overrides": {}, "device": "cpu", "dtype": "float32"}
    order = {
        "problem": problem,
        "seed": 1,
        "arena": arena,
        "inputs": inputs.to_json(),
        "outputs": outputs.to_json(),
        "arguments": [{"tensor": 0}, {"tensor": 1}, {"value": 2.0}],
    }
    session = Session({"role": "eager"}, order, os.dup(fd))
    os.close(fd)
    mailbox: Any = Mailbox()
    run = {"op": "run", "calls": [2, 0, 3, 1], "stand_in": 0, "deliver": True, "chain": True, "wait": False}
    session.run(run, mailbox)
    assert mailbox.sent[-1]["op"] == "done"
    results = memory[inputs.bytes :]
    answers, rows = outputs.views(results), outputs.rows(results)
    assert torch.equal(answers[2][0], tanhs(*drawn[2])), "the first is as it was"
    for before, call in [(2, 0), (0, 3), (3, 1)]:
        expected = [each.clone() for each in drawn[call]]
        stir(expected, number_of(rows[before]))
        torch.testing.assert_close(answers[call][0], tanhs(*expected))
        assert not torch.allclose(answers[call][0], tanhs(*drawn[call])), "who leaves it out is wrong"
