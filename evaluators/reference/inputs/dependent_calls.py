"""Chains of calls: what each call gets depends on the answer to the one before.

Inputs of a block's calls are all there when it begins, so that a kernel could compute them together, as one
large batch, which a real user's calls never are. In a chain nobody can: each call's inputs shrink, element by
element, by shares made of the values of the answer before; so a probability stays one. (A number made of its
bytes would not do: a tolerance leaves enough of them free to bring about any number.) The runner does so, and
the judge process again with the answers that were handed in, so that who leaves it out is wrong. It is done
in few launches, which nothing hides where a kernel waits for the GPU in every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evaluators.reference.inputs.strided_layouts import span_of

if TYPE_CHECKING:
    import torch

MOST = 2**22
"""Shares that an answer gives: of more elements the first count."""
SMALLEST = 1e-30
"""Answers that differ by less do not differ."""
LOSS = 0.5
"""Of an element at most."""


def can_stir(inputs: Iterable[torch.Tensor]) -> bool:
    """Whether there are floating-point numbers to change. Integers are left alone: they may be places."""
    return bool(_floating(inputs))


def shares_of(answers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Between nought and one, in float32, flat: an element's tells on which side of the mean it lies and how
    far. `answers` are all outputs of a call, dense; of them the first that has any element counts."""
    import torch

    answer = next(each for each in answers if each.numel())
    values = torch.nan_to_num(_flat(answer)[:MOST].float(), 0.0, 0.0, 0.0)
    deviation, mean = torch.std_mean(values, correction=0)
    return (values - mean).div_(deviation.clamp_min_(SMALLEST)).sigmoid_()


def stir(inputs: Iterable[torch.Tensor], shares: torch.Tensor) -> None:
    """Lets a call's floating-point inputs shrink in place, gaps between elements included; signs and zeros
    stay. Fewer shares than elements are repeated. That takes two launches a tensor, however few the shares:
    a GPU's queue holds about a thousand."""
    for each in _floating(inputs):
        span = span_of(each.detach())
        whole = len(span) - len(span) % len(shares)
        rows, rest = span[:whole].view(-1, len(shares)), span[whole:]
        rows.addcmul_(rows, shares, value=-LOSS)
        rest.addcmul_(rest, shares[: len(rest)], value=-LOSS)


def _floating(inputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [each for each in inputs if each.is_floating_point() and each.numel()]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
