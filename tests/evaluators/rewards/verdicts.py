"""Verdicts, and a judge that needs no device."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem

KERNEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    speed = {speed}\n"


def kernel(speed: float = 2.0) -> str:
    """The text of a kernel to which `FakeJudge` gives this speedup; at 0 it is incorrect."""
    return KERNEL.format(speed=speed)


def correct(speedup: float = 2.0, *, width: float = 0.05) -> Evaluation:
    """A correct evaluation; the interval reaches `width` to either side, as a share."""
    return Evaluation(
        status=Status.CORRECT,
        timing=Timing(
            kernel_ms=1 / speedup,
            eager_ms=1.0,
            speedup=speedup,
            speedup_low=speedup * (1 - width),
            speedup_high=speedup * (1 + width),
        ),
    )


def failed(status: Status) -> Evaluation:
    """An evaluation without a timing."""
    return Evaluation(status=status, log="why", rule="sabotage" if status is Status.REJECTED else "")


class FakeJudge:
    """Judges by the kernel's text. Waits for `free` before each verdict."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.asked: list[Kernel] = []
        self.cancelled = 0
        self.verdicts: Mapping[str, Evaluation] = {}
        """Verdicts by a word in the kernel."""

    async def describe(self, problem: Problem) -> dict[str, str]:
        """See `Judge`."""
        return {"device": "a device"}

    async def evaluate(self, problem: Problem, kernel: Kernel, **_: Any) -> Evaluation:
        """See `Judge`."""
        self.asked.append(kernel)
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        for word, verdict in self.verdicts.items():
            if word in kernel.source:
                return verdict
        speed = float(kernel.source.rpartition("speed = ")[2].split()[0])
        return correct(speed) if speed else failed(Status.INCORRECT)
