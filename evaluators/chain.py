"""Chains of calls: what each call gets depends on the answer to the one before.

Inputs of a block's calls are all there when it begins, so that a kernel could compute them together, as one
large batch, which a real user's calls never are. In a chain nobody can: each call's inputs are multiplied,
element by element, by factors made of the values of the answer before. (A number made of its bytes would not
do: a tolerance leaves enough of them free to bring about any number.) The runner does so, and the referee
again with the answers that were handed in, so that who leaves it out is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FEWEST, MOST = 2**16, 2**22
"""Factors that an answer gives; fewer elements are repeated, and of more the first count."""


def can_stir(inputs: Iterable[Any]) -> bool:
    """Whether there are floating-point numbers to change. Integers are left alone: they may be places."""
    return bool(_floating(inputs))


def factors_of(answers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Between a half and one, in float32, flat: an element's tells on which side of the mean it lies and how
    far. `answers` are all outputs of a call, dense; of them the first that has any element counts."""
    import torch

    answer = next(each for each in answers if each.numel())
    values = torch.nan_to_num(_flat(answer)[:MOST].float(), 0.0, 0.0, 0.0)
    away = values - values.mean()
    size = away.abs()
    factors = away.div_(size + (size.mean() + 1e-30)).mul_(0.25).add_(0.75)
    return factors.repeat(-(-FEWEST // len(factors))) if len(factors) < FEWEST else factors


def stir(inputs: Iterable[Any], factors: torch.Tensor) -> None:
    """Multiplies a call's floating-point inputs, which are dense, in place; signs and zeros stay."""
    import torch

    for tensor in _floating(inputs):
        for part in torch.split(_flat(tensor), len(factors)):
            part.mul_(factors[: len(part)])


def _floating(inputs: Iterable[Any]) -> list[torch.Tensor]:
    import torch

    tensors = (each for each in inputs if isinstance(each, torch.Tensor))
    return [each for each in tensors if each.is_floating_point() and each.numel()]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
