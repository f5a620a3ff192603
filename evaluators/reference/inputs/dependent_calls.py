"""Chains of calls: the inputs of each call depend on the answer to the call before.

All inputs of a timed block exist when it begins, so a kernel could compute its calls together as one large
batch, which a real user's calls never are. In a chain it cannot: each call's inputs shrink, element by
element, by shares computed from the previous answer's values. Shrinking keeps probabilities valid. (A hash of
the answer's bytes would not do: the tolerance leaves enough bits free to produce any hash.) The runner
changes the inputs, and the judge repeats the change with the answers it received, so a kernel that skips a
step gives wrong answers. The change takes few launches, because nothing hides them behind a kernel that waits
for the GPU in every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evaluators.reference.inputs.strided_layouts import span_of

if TYPE_CHECKING:
    import torch

MOST = 2**22
"""The largest number of shares; of a larger answer only the first elements are used."""
SMALLEST = 1e-30
"""Standard deviations below this count as zero variation."""
LOSS = 0.5
"""The largest part of itself that an element loses."""


def can_stir(inputs: Iterable[torch.Tensor]) -> bool:
    """Whether there are floating-point inputs to change. Integers stay as they are: they may be indices."""
    return bool(_floating(inputs))


def shares_of(answers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Shares between 0 and 1, flat, in float32: each is the sigmoid of an element's distance from the mean in
    standard deviations. `answers` are all outputs of a call, dense; the first one with elements is used."""
    import torch

    answer = next(each for each in answers if each.numel())
    values = torch.nan_to_num(_flat(answer)[:MOST].float(), 0.0, 0.0, 0.0)
    deviation, mean = torch.std_mean(values, correction=0)
    return (values - mean).div_(deviation.clamp_min_(SMALLEST)).sigmoid_()


def stir(inputs: Iterable[torch.Tensor], shares: torch.Tensor) -> None:
    """Shrinks a call's floating-point inputs in place, including gaps between elements; signs and zeros stay.
    Shares are repeated if there are fewer than elements. Always takes two launches per tensor, because a
    GPU's queue holds only about a thousand."""
    for each in _floating(inputs):
        span = span_of(each.detach())
        whole = len(span) - len(span) % len(shares)
        rows, rest = span[:whole].view(-1, len(shares)), span[whole:]
        rows.addcmul_(rows, shares, value=-LOSS)
        rest.addcmul_(rest, shares[: len(rest)], value=-LOSS)


def _floating(inputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that can be changed in place: 8-bit floats have no arithmetic, and stay as they are too."""
    return [each for each in inputs if each.is_floating_point() and each.numel() and each.element_size() > 1]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))
