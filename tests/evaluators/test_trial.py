"""A trial's rows of calls, against modules of which is known how long they take, without a device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from evaluators.evaluation import Status
from evaluators.side import Refused
from evaluators.timing import Block, Overhead, Plan
from evaluators.trial import ROW_CALLS, Trial

BESIDES_MS, LINK_MS, WAIT_MS = 0.4, 0.025, 0.02
Cost = Callable[[int, bool], float]
"""ms of so many calls, in a row or not."""


@dataclass
class Module:
    """A side whose blocks take what `cost` says, and what everybody's take besides."""

    cost: Cost
    waits: bool = False
    asked: list[tuple[int, bool, bool]] = field(default_factory=list)

    def block(self, calls: int, *, wait: bool = False) -> Block:
        return self._block(calls, row=False, wait=wait)

    def row(self, calls: int, *, wait: bool = False) -> tuple[Block, list[int]]:
        return self._block(calls, row=True, wait=wait), list(reversed(range(calls)))

    def _block(self, calls: int, *, row: bool, wait: bool) -> Block:
        self.asked.append((calls, row, wait))
        links_ms = (calls - 1) * LINK_MS if row else 0.0
        waits_ms = calls * WAIT_MS * (1 + row) if wait or self.waits else 0.0
        return Block(calls=calls, wall_ms=BESIDES_MS + self.cost(calls, row) + links_ms + waits_ms)


class Court:
    """Knows each call's secret; a right answer is the secret and the number of the answer before."""

    device, capacity = "cuda", 256

    def __init__(self, eager: Module, *, eager_calls: int) -> None:
        self.eager, self._calls = eager, eager_calls
        self.checked: list[tuple[int, int]] = []

    def eager_calls(self, plan: Plan) -> int:
        return self._calls

    def overhead(self, calls: int) -> Overhead:
        return Overhead(total_ms=BESIDES_MS, delivery_ms=0.0)

    def stage_fresh(self, families: list[str], side: Module) -> list[int]:
        return [100 + call for call in range(len(families))]

    def snapshot(self, call: int) -> list[torch.Tensor]:
        return [torch.tensor(call)]

    def number(self, call: int) -> torch.Tensor:
        return torch.tensor(call)

    def check(self, outputs: list[torch.Tensor], seed: int, *, after: torch.Tensor, spot: bool) -> None:
        assert seed == 100 + int(outputs[0])
        self.checked.append((int(outputs[0]), int(after)))


def judge(cost: Cost, *, waits: bool = False, eager_ms: float = 0.05, calls: int = 192) -> Court:
    """A row of this module beside a baseline that takes `eager_ms` a call. Raises what the trial raises."""
    court = Court(Module(lambda n, row: n * eager_ms), eager_calls=max(1, min(256, math.ceil(10 / eager_ms))))
    side = Module(cost, waits=waits)
    trial = object.__new__(Trial)
    parts: dict[str, Any] = {"_court": court, "_side": side, "_plan": Plan(block_ms=10, precision=1, max_s=1)}
    for name, part in parts.items():
        setattr(trial, name, part)
    trial._require_single_calls(calls, side.block(calls).call_ms(BESIDES_MS))
    assert all(asked <= ROW_CALLS for asked, row, _ in side.asked + court.eager.asked if row)
    assert {wait for *_, wait in court.eager.asked} == {waits}, "the baseline waits where the candidate does"
    assert court.checked, "who is fast in a row must be right there"
    assert all(before == call + 1 for call, before in court.checked), "in the order in which they were made"
    return court


@pytest.mark.parametrize("call_ms", [0.003, 0.03, 0.1, 1.0])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("eager_ms", [0.02, 0.5, 50.0])
def test_single_calls_are_fair(call_ms: float, eager_ms: float, waits: bool) -> None:
    judge(lambda n, row: n * call_ms, waits=waits, eager_ms=eager_ms)


def test_a_wait_once_a_block_is_fair() -> None:
    judge(lambda n, row: 1.3 + n * 0.59, calls=16)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("alone_ms", "more_ms"), [(0.04, 0.001), (0.3, 0.01), (1.0, 0.4)])
def test_calls_computed_together_are_rejected(alone_ms: float, more_ms: float, waits: bool) -> None:
    """All of a block in the first call; in a row that cannot be done."""

    def cost(calls: int, row: bool) -> float:
        return calls * (alone_ms + more_ms) if row else alone_ms + calls * more_ms

    with pytest.raises(Refused, match="not computed singly") as refused:
        judge(cost, waits=waits)
    assert (refused.value.status, refused.value.rule) == (Status.REJECTED, "batched calls")
