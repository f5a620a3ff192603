"""Which outputs a kernel keeps after its caller has dropped them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from evaluators.runner.kept_outputs import KeptOutputs

CALLS = 12


def piled_up(forward: Callable[[int], list[torch.Tensor]]) -> bool:
    kept = KeptOutputs(forward(0))
    for call in range(1, CALLS):
        kept.note(forward(call))
    return kept.pile_up()


def ring(size: int, new: Callable[[], torch.Tensor]) -> Callable[[int], list[torch.Tensor]]:
    buffers = [new() for _ in range(size)]
    return lambda call: [buffers[call % size]]


def new() -> torch.Tensor:
    return torch.empty(100)


def foreign() -> torch.Tensor:
    return torch.from_numpy(numpy.empty(100, numpy.float32))


WORKSPACE = torch.empty(100, 100)
KEPT: list[Any] = []


def kept(call: int) -> list[torch.Tensor]:
    KEPT.append(torch.empty(100))
    return [KEPT[-1].view(10, 10)]


def in_a_cycle(call: int) -> list[torch.Tensor]:
    """As a local recursive function makes it."""
    output = torch.empty(100)
    cycle: list[Any] = [output]
    cycle.append(cycle)
    return [output]


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        pytest.param(lambda call: [new()], False, id="fresh"),
        pytest.param(lambda call: [foreign()], False, id="fresh, not torch's"),
        pytest.param(ring(1, new), False, id="one buffer: its contents show it"),
        pytest.param(ring(4, new), False, id="a short ring: its contents show it"),
        pytest.param(ring(50, new), True, id="a long ring"),
        pytest.param(ring(50, foreign), True, id="a long ring, not torch's"),
        pytest.param(lambda call: [new(), *ring(50, new)(call)], False, id="a ring that is dropped"),
        pytest.param(lambda call: [WORKSPACE[call]], True, id="rows of a workspace"),
        pytest.param(lambda call: [new(), WORKSPACE[:, call]], True, id="columns, as the second output"),
        pytest.param(kept, True, id="views of what it keeps"),
        pytest.param(in_a_cycle, False, id="garbage"),
        pytest.param(lambda call: [torch.empty(0)], False, id="no elements"),
    ],
)
def test_outputs_that_a_kernel_keeps(forward: Callable[[int], list[torch.Tensor]], expected: bool) -> None:
    gc.disable()
    try:
        assert piled_up(forward) is expected
    finally:
        gc.enable()
