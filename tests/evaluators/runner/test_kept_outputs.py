"""Which outputs a kernel keeps after its caller has dropped them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from evaluators.runner.kept_outputs import KeptOutputs

CALLS, MORE = 13, 40
Finding = tuple[bool, bool, bool]
ENOUGH, AGAIN, ALL = (False, False, False), (True, True, True), (True, False, True)
"""Whether more calls were needed, whether they returned memory again, and whether all of it is kept."""


def findings(forward: Callable[[int], list[torch.Tensor]]) -> Finding:
    kept = KeptOutputs(forward(0), lent=LENT.data_ptr())
    for call in range(1, CALLS):
        kept.note(forward(call))
    if not kept.suspects():
        return ENOUGH
    for call in range(CALLS, MORE):
        kept.note(forward(call))
    assert kept.suspects()
    return True, kept.returned_again, kept.keeps_all()


def ring(size: int, new: Callable[[], torch.Tensor]) -> Callable[[int], list[torch.Tensor]]:
    buffers = [new() for _ in range(size)]
    return lambda call: [buffers[call % size]]


def slabs(size: int) -> Callable[[int], list[torch.Tensor]]:
    parts: list[torch.Tensor] = []

    def forward(call: int) -> list[torch.Tensor]:
        if not parts:
            parts.extend(torch.empty(size, 100).unbind())
        return [parts.pop()]

    return forward


def new() -> torch.Tensor:
    return torch.empty(100)


def foreign() -> torch.Tensor:
    return torch.from_numpy(numpy.empty(100, numpy.float32))


LENT, WORKSPACE = torch.empty(100, 100), torch.empty(100, 100)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        pytest.param(lambda call: [new()], ENOUGH, id="fresh"),
        pytest.param(lambda call: [foreign()], ENOUGH, id="fresh, not torch's"),
        pytest.param(ring(1, new), ENOUGH, id="one buffer: its contents show it"),
        pytest.param(ring(4, new), ENOUGH, id="a short ring: its contents show it"),
        pytest.param(ring(8, new), AGAIN, id="a ring of which the first buffer may have been used once"),
        pytest.param(ring(20, new), AGAIN, id="a ring, with more calls"),
        pytest.param(ring(20, foreign), AGAIN, id="a ring, not torch's"),
        pytest.param(ring(30, new), ALL, id="a ring that begins again"),
        pytest.param(slabs(9), (True, False, False), id="parts of blocks that are freed"),
        pytest.param(lambda call: [LENT[call]], ENOUGH, id="rows of an input"),
        pytest.param(ring(50, new), ALL, id="a long ring"),
        pytest.param(ring(50, foreign), ALL, id="a long ring, not torch's"),
        pytest.param(lambda call: [new(), *ring(50, new)(call)], ENOUGH, id="a ring that is dropped"),
        pytest.param(slabs(1000), (True, False, False), id="parts of a block that is not used up"),
        pytest.param(lambda call: [WORKSPACE[call]], (True, False, False), id="rows of a workspace"),
        pytest.param(
            lambda call: [new(), WORKSPACE[:, call]], (True, False, False), id="columns, second output"
        ),
        pytest.param(kept, ALL, id="views of what it keeps"),
        pytest.param(in_a_cycle, ENOUGH, id="garbage"),
        pytest.param(lambda call: [torch.empty(0)], ENOUGH, id="no elements"),
    ],
)
def test_outputs_that_a_kernel_keeps(forward: Callable[[int], list[torch.Tensor]], expected: Finding) -> None:
    gc.disable()
    try:
        assert findings(forward) == expected
    finally:
        gc.enable()
