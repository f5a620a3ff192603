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


@dataclass(kw_only=True)
class WatchedClient:
    """A model client, and what it does."""

    path: Path
    budget: Budget = field(default_factory=Budget)
    jitter: float = 1.0
    pauses_s: list[float] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model_client = ModelClient(
            budget=self.budget,
            path=self.path,
            report=self.calls.append,
            sleep=self._sleep,
            jitter=lambda: self.jitter,
        )

    async def _sleep(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)

    def ask(self, model: FakeModel, read: Callable[[str], Any] = str) -> Any:
        return asyncio.run(self.model_client.ask(model, QUESTION, read))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def failing(cause: Cause, **more: Any) -> CallFailed:
    return CallFailed(cause, "why", **more)


async def forever(question: Question) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError
