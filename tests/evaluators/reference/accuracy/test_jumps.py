"""Elements where the right answer jumps from one value to another."""

from __future__ import annotations

import torch

from evaluators.reference.accuracy.jumps import at_jumps, largest_errors
from evaluators.reference.inputs.input_distributions import Distribution
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
    session.accept(identity, 0, session.compute_answer(identity, 0))
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


def test_a_row_of_attention_jumps_as_a_whole() -> None:
    """Scores of 2e6 have an ulp of 0.25 in float32. Where the two largest of a row are nearly equal, a row of
    the answer is anywhere between two rows of `v`, as the order of the sums decides."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT, -1) @ v

    torch.manual_seed(0)
    q, k = (-600 * torch.ones(32, 64) - 100 * torch.rand(32, 64) for _ in range(2))
    k[5] *= 2
    k[6] = k[5].flip(0)
    q[7] = (q[7] + q[7].flip(0)) / 2
    inputs = [q, k, v := torch.randn(32, 64)]
    session = session_of(attention, lambda: inputs)
    exact = [attention(*(each.double() for each in inputs))]

    def excused(row: int, values: torch.Tensor) -> int:
        """How many elements of this row are, where a kernel's answer has these values."""
        outputs = [exact[0].float()]
        outputs[0][row] = values
        found = at_jumps(session, inputs, outputs, exact, largest_errors(outputs, exact))
        return int((found[0] // 64 == row).sum())

    for share in (0.25, 0.75):
        assert excused(7, torch.lerp(v[5], v[6], share)) == 64
    for beside in (v[5] + 0.5, v[4]):
        assert excused(7, beside) < 32
    assert excused(8, v[5]) == 0
