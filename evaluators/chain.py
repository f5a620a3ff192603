"""Chains of calls: what each call gets depends on the answer to the one before.

Inputs of a block's calls are all there when it begins, so that a kernel could compute them together, as one
large batch, which a real user's calls never are. In a chain nobody can: each call's inputs grow, element by
element, by shares made of the values of the answer before. (A number made of its bytes would not do: a
tolerance leaves enough of them free to bring about any number.) The runner does so, and the referee again
with the answers that were handed in, so that who leaves it out is wrong. It is done in few launches, which
nothing hides where a kernel waits for the GPU in every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evaluators.layouts import span_of

if TYPE_CHECKING:
    import torch

FEWEST, MOST = 2**16, 2**22
"""Shares that an answer gives: of more elements the first count, fewer are repeated for longer inputs."""
SMALLEST = 1e-30
"""Answers that differ by less do not differ."""
GROWTH = 0.5


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
    """Lets a call's floating-point inputs grow in place, gaps between elements included; signs and zeros
    stay."""
    import torch

    spans = [span_of(each.detach()) for each in _floating(inputs)]
    longest = max(map(len, spans), default=0)
    if len(shares) < min(longest, FEWEST):
        shares = shares.repeat(-(-min(longest, FEWEST) // len(shares)))
    for span in spans:
        for part in torch.split(span, len(shares)):
            part.addcmul_(part, shares[: len(part)], value=GROWTH)


def _floating(inputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [each for each in inputs if each.is_floating_point() and each.numel()]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
