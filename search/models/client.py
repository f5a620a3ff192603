"""The one place that calls language models. It owns the budget's reservations, retries, concurrency and the
record of calls.

Each attempt is a line in `model_calls.jsonl`, with its texts, and is reported without them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from search.records.budget import Budget, BudgetSpent, Cost
from search.records.model_calls import LLM, Answer, CallFailed, Cause, ModelCall, Question, Usage

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
FEEDBACK_CAUSES = (Cause.MALFORMED, Cause.CUT_OFF, Cause.EMPTY)
"""Causes that the model is told about when it is asked again."""

Result = TypeVar("Result")


class ModelClient:
    """Asks language models within a run's budget.

    Args:
        budget: The run's budget.
        path: The file for the texts, created by the first call.
        report: Called with each attempt.
        sleep: Waits for seconds; replaced in tests.
        jitter: Returns a number from 0 to 1; replaced in tests.
    """

    def __init__(
        self,
        *,
        budget: Budget,
        path: Path,
        report: Callable[[ModelCall], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._budget, self._path, self._report = budget, path, report
        self._sleep, self._jitter = sleep, jitter
        self._at_a_time: dict[str, asyncio.Semaphore] = {}
        self._settled = asyncio.Event()

    async def ask(self, model: LLM, question: Question, read: Callable[[str], Result]) -> Result:
        """Asks a model and returns what `read` makes of its answer.

        A failed call is repeated after a pause, up to the model's number of tries.

        Args:
            model: The model to ask.
            question: The prompt.
            read: Turns the text of the answer into the result; raises ValueError if it cannot be used.

        Raises:
            CallFailed: With the last cause, if no try gave a usable answer.
            BudgetSpent: If another call could exceed a limit of the run.
        """
        asked, tries = question, model.limits.tries
        for attempt in range(1, tries + 1):
            try:
                return await self._once(model, asked, attempt, read)
            except CallFailed as failed:
                if not failed.cause.retryable or attempt == tries:
                    raise
                logger.info("%s, attempt %d for %s: %s", model.name, attempt, question.purpose, failed)
                if failed.cause in FEEDBACK_CAUSES:
                    asked = replace(question, prompt=f"{question.prompt}\n\n{_feedback(failed)}")
                await self.pause(self._pause_s(attempt, failed))
        raise AssertionError("limits.tries is positive")

    async def pause(self, seconds: float) -> None:
        """Sleeps. Raises BudgetSpent if the run would have no time left afterwards."""
        left_s = self._budget.remaining_s
        if left_s is not None and seconds >= left_s:
            raise BudgetSpent("seconds")
        await self._sleep(seconds)

    async def _once(
        self, model: LLM, question: Question, attempt: int, read: Callable[[str], Result]
    ) -> Result:
        async with self._slot(model):
            most = question.most_tokens(model.limits)
            reserved = Cost(tokens=most.tokens, dollars=model.price.at_most(most))
            await self._reserve(reserved)
            start = time.monotonic()
            answer: Answer | None = None
            failed: CallFailed | None = CallFailed(Cause.CONNECTION, "the call was interrupted")
            try:
                answer = await self._complete(model, question)
                result = _read(answer, read)
                failed = None
                return result
            except CallFailed as error:
                failed = error
                raise
            finally:
                usage, estimated = _used(answer, failed, most)
                dollars = reserved.dollars if estimated else model.price.dollars(usage)
                self._budget.settle_call(reserved, Cost(tokens=usage.tokens, dollars=dollars))
                self._settled.set()
                call = ModelCall(
                    id=f"{self._budget.cost_spent.calls:06d}",
                    model=model.name,
                    purpose=question.purpose,
                    about=question.about,
                    attempt=attempt,
                    usage=usage,
                    dollars=float(dollars),
                    seconds=round(time.monotonic() - start, 3),
                    estimated=estimated,
                    cause=failed.cause if failed else None,
                    detail=failed.detail if failed else "",
                )
                text = answer.text if answer else failed.text if failed else ""
                self._record(call, question, text)

    async def _complete(self, model: LLM, question: Question) -> Answer:
        """Makes the call within the model's and the run's time limits."""
        remaining_s = self._budget.remaining_s
        limit_s = model.limits.timeout_s if remaining_s is None else min(remaining_s, model.limits.timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                return await model.complete(question)
        except TimeoutError:
            raise CallFailed(Cause.TIMEOUT, f"no answer within {limit_s:g} s") from None

    async def _reserve(self, most: Cost) -> None:
        """Waits while calls in flight may still leave room. Raises BudgetSpent."""
        while not self._budget.reserve_call(most):
            self._settled.clear()
            await self._settled.wait()

    def _slot(self, model: LLM) -> asyncio.Semaphore:
        """One semaphore per provider, because its models share its limits."""
        provider = model.name.partition("/")[0]
        return self._at_a_time.setdefault(provider, asyncio.Semaphore(model.limits.concurrency))

    def _pause_s(self, attempt: int, failed: CallFailed) -> float:
        """Doubles with each attempt, with jitter, and is at least what the provider asks for. There is no
        pause for failures that waiting does not help."""
        if failed.cause in FEEDBACK_CAUSES or failed.cause is Cause.REFUSED:
            return 0.0
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (attempt - 1)) * (0.5 + self._jitter() / 2)
        return max(pause_s, failed.retry_after_s or 0.0)

    def _record(self, call: ModelCall, question: Question, text: str) -> None:
        line = {**asdict(call), "system": question.system, "prompt": question.prompt}
        line |= {"schema": question.schema, "answer": text}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._report(call)


def _read(answer: Answer, read: Callable[[str], Result]) -> Result:
    try:
        return read(answer.text)
    except ValueError as error:
        raise CallFailed(Cause.MALFORMED, str(error), usage=answer.usage, text=answer.text) from error


def _used(answer: Answer | None, failed: CallFailed | None, most: Usage) -> tuple[Usage, bool]:
    """The tokens of a call, and whether they had to be estimated: a lost answer may have been charged for."""
    if answer is not None:
        return answer.usage or most, answer.usage is None
    assert failed is not None
    if failed.usage is None and failed.cause.lost:
        return most, True
    return failed.usage or Usage(), False


def _feedback(failed: CallFailed) -> str:
    return f"Note: an earlier answer to this could not be used ({failed}). Please avoid that."
