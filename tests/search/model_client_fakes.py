"""A model that does what it is told, and a model client whose pauses and reports are kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from search.models.client import ModelClient
from search.records.budget import Budget
from search.records.model_calls import (
    Answer,
    CallFailed,
    Cause,
    Limits,
    ModelCall,
    Price,
    Purpose,
    Question,
    Usage,
)

QUESTION = Question(purpose=Purpose.CODE, system="system", prompt="prompt", about="r0i0", schema={"a": 1})
PRICE = Price(input=1.0, output=4.0, cached_input=0.1)
LIMITS = Limits(output_tokens=1_000, timeout_s=5.0, concurrency=4, tries=3)
USED = Usage(input_tokens=200, cached_tokens=100, output_tokens=50)
OF_USED = Decimal("0.00031")
MOST = QUESTION.most_tokens(LIMITS)
ANSWER = Answer(text="text", usage=USED)

Act = Callable[[Question], Awaitable[Answer]]


class FakeModel:
    """Does, call by call, what it is given; the last of it ever after."""

    def __init__(
        self,
        *acts: Answer | CallFailed | Act,
        name: str = "fake/a",
        price: Price = PRICE,
        limits: Limits = LIMITS,
    ) -> None:
        self.name, self.price, self.limits = name, price, limits
        self.asked: list[Question] = []
        self._acts = list(acts or [ANSWER])

    def refusal(self) -> str | None:
        return None

    def begin(self, folder: Path) -> None: ...

    async def complete(self, question: Question) -> Answer:
        act = self._acts[min(len(self.asked), len(self._acts) - 1)]
        self.asked.append(question)
        if isinstance(act, CallFailed):
            raise act
        return act if isinstance(act, Answer) else await act(question)

    async def close(self) -> None: ...


class VirtualTime:
    """A clock, and a sleep that takes no time but the clock's, which moves on when everyone else has had many
    turns."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses_s: list[float] = []
        self._wakes_at_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)
        wakes_at_s = self.now_s + pause_s
        self._wakes_at_s.append(wakes_at_s)
        try:
            while self.now_s < wakes_at_s:
                for _ in range(40):
                    await asyncio.sleep(0)
                self.now_s = max(self.now_s, min(self._wakes_at_s))
        finally:
            self._wakes_at_s.remove(wakes_at_s)


@dataclass(kw_only=True)
class WatchedClient:
    """A model client, and what it does."""

    path: Path
    budget: Budget = field(default_factory=Budget)
    jitter: float = 1.0
    patience_s: float = 0.0
    clock: VirtualTime = field(default_factory=VirtualTime)
    calls: list[ModelCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model_client = ModelClient(
            budget=self.budget,
            path=self.path,
            report=self.calls.append,
            sleep=self.clock.sleep,
            jitter=lambda: self.jitter,
            clock=self.clock,
        )

    @property
    def pauses_s(self) -> list[float]:
        return self.clock.pauses_s

    def ask(self, *models: FakeModel, read: Callable[[str], Any] = str) -> Any:
        """What `read` makes of the answer."""
        return asyncio.run(self.ask_in_loop(*models, read=read))

    async def ask_in_loop(self, *models: FakeModel, read: Callable[[str], Any] = str) -> Any:
        return (await self.model_client.ask(models, QUESTION, read, patience_s=self.patience_s))[1]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def failing(cause: Cause, **more: Any) -> CallFailed:
    return CallFailed(cause, "why", **more)


async def forever(question: Question) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError
