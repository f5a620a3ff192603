"""Elements where the right answer jumps from one value to another."""

from __future__ import annotations

import torch

from evaluators.reference.input_distributions import Distribution
from tests.evaluators.references import session_of


def test_at_a_jump_a_kernel_may_have_either_value() -> None:
    """`tanh` of a sum of huge numbers that cancel is -1 or 1, as the order of the terms decides: further than
    a rounding of the inputs reaches."""

    def signs(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.sum(-1))

    torch.manual_seed(0)
    x = torch.randn(2000, 64) * 2**24
    x[7, 0] -= (x[7].double().sum() - 32).float()
    session = session_of(signs, lambda: [x])
    identity = Distribution(name="shifted", floating=lambda tensor: tensor)
    session.take_in(identity, 0, session.work_out(identity, 0))
    right = signs(x)
    turned = {number: right.clone() for number in (3, 7)}
    for number, each in turned.items():
        each[number] *= -1
    assert not session.check_on([right], "shifted").problem
    assert not session.check_on([turned[7]], "shifted").problem
    assert session.check_on([turned[3]], "shifted").problem
    both = turned[7].clone()
    both[3] *= -1
    assert session.check_on([both], "shifted").problem
    beyond = right.clone()
    beyond[7] = 2.0
    assert session.check_on([beyond], "shifted").problem
