"""The one place that calls language models. It owns the budget's reservations, retries, waiting, concurrency
and the record of calls.

Each attempt is a line in `model_calls.jsonl`, with its texts, and is reported without them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from evaluators.base.jsonl_store import append_line
from search.models.cut_off import continued, reading
from search.models.service import LONGEST_PAUSE_S, Service
from search.records.budget import NOTHING, Budget, BudgetSpent, Cost
from search.records.model_calls import (
    LLM,
    LONGEST_TEXT,
    Answer,
    CallFailed,
    Cause,
    ModelCall,
    OutOfService,
    Question,
    Usage,
    storable,
)
from search.records.outside import WaitsOutside

logger = logging.getLogger(__name__)

FEEDBACK_CAUSES = (Cause.MALFORMED, Cause.CUT_OFF, Cause.EMPTY)
"""Causes that the model is told about when it is asked again."""
SHOWN_AGAIN = 20_000
"""Characters of an unusable answer that the model is shown again."""
BUSY_CAUSES = (Cause.RATE_LIMITED, Cause.UNREACHABLE)
"""Failures of a service that no question is the reason for."""
LONE_FAILURES = 4
"""A question that a service fails this many times the model's tries, while it answers other questions, is
given up, because the question is the likely reason. After time-outs, which take long and may be charged for,
it is given up after the tries."""

Result = TypeVar("Result")


class ModelClient:
    """Asks language models within a run's budget.

    Args:
        budget: The run's budget.
        path: The file for the texts, created by the first call.
        report: Called with each attempt.
        sleep: Waits for seconds; replaced in tests.
        jitter: Returns a number from 0 to 1; replaced in tests.
        clock: Returns seconds from any origin; replaced in tests.
    """

    def __init__(
        self,
        *,
        budget: Budget,
        path: Path,
        report: Callable[[ModelCall], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget, self._path, self._report = budget, path, report
        self._sleep, self._jitter, self._clock = sleep, jitter, clock
        self._at_a_time: dict[str, asyncio.Semaphore] = {}
        self._services: dict[LLM, Service] = {}
        self._asked = Counter[LLM]()
        """The calls in flight."""
        self._pauses = 0
        self._settled = asyncio.Event()
        self._announced_s = 0.0

    async def ask(
        self,
        models: Sequence[LLM],
        question: Question,
        read: Callable[[str], Result],
        *,
        patience_s: float = 0.0,
    ) -> tuple[LLM, Result]:
        """Asks the first of the models that is in service and returns what `read` makes of its answer.

        An answer that cannot be used is asked for again, up to the model's number of tries; then the next
        model is asked. An answer that was cut off is read together with the next one, which may continue it,
        and alone once no model is left. A model whose service fails is asked again after pauses that
        double. After its number of tries it is out of service: other models are asked in its place, and one
        question at a time finds out whether it is back. If all are out of service, the question waits.
        An optional question is asked once.

        Args:
            models: The models to ask, the preferred one first.
            question: The prompt.
            read: Turns the text of the answer into the result; raises ValueError if it cannot be used.
            patience_s: How many seconds to wait while all models are out of service.

        Returns:
            The model that gave the answer, and the result.

        Raises:
            OutOfService: If all models deny access, or are still out of service after `patience_s`.
            CallFailed: With the last cause, if no model gave a usable answer to this question.
            BudgetSpent: If another call could exceed a limit of the run.
        """
        asked = question
        given_up: dict[LLM, CallFailed] = {}
        attempts, unusable, lone = Counter[LLM](), Counter[LLM](), Counter[LLM]()
        answers: dict[LLM, int] = {}
        begun: dict[LLM, str] = {}
        while True:
            model = await self._choose(models, given_up, patience_s)
            service = self._service(model)
            is_probe = service.is_probed = service.is_out
            try:
                async with self._slot(model):
                    if service.failures and not is_probe and self._clock() < service.retry_at_s:
                        continue  # it failed while this question waited for its turn
                    answers.setdefault(model, service.answers)
                    attempts[model] += 1
                    read_on = reading(read, begun.get(model, ""))
                    result = await self._attempt(model, asked, attempts[model], read_on)
                return model, result
            except CallFailed as failed:
                if question.optional:
                    raise
                asked = question
                if failed.cause is Cause.CUT_OFF:
                    begun[model] = continued(begun.get(model, ""), failed.text)
                if service.denied:
                    continue
                if failed.outage:
                    if service.answers > answers[model] and failed.cause not in BUSY_CAUSES:
                        lone[model] += LONE_FAILURES if failed.cause is Cause.TIMEOUT else 1
                    answers[model] = service.answers
                    if lone[model] >= LONE_FAILURES * model.limits.tries:
                        given_up[model] = failed
                elif not failed.cause.retryable or unusable[model] + 1 >= model.limits.tries:
                    given_up[model] = failed
                    if begun.get(model) and len(given_up) == len(models):
                        with suppress(ValueError):
                            return model, read(begun[model])
                else:
                    unusable[model] += 1
                    if failed.cause in FEEDBACK_CAUSES:
                        text = begun[model] if failed.cause is Cause.CUT_OFF else failed.text
                        asked = replace(question, prompt=f"{question.prompt}\n\n{_feedback(failed, text)}")
            finally:
                if is_probe:
                    service.is_probed = False
                    self._settled.set()

    def may_be_asked(self, models: Iterable[LLM]) -> list[LLM]:
        """The models that are in service, or may be back; if there are none, those that do not deny access;
        if there are none either, all."""
        given, now_s = list(models), self._clock()
        left = [model for model in given if not self._service(model).denied]
        return [model for model in left if self._service(model).may_be_asked(now_s)] or left or given

    def awaited(self) -> list[str] | None:
        """The answers that are awaited from people, a line each; None while a model is called, or is to be
        called after a pause."""
        waits = {model: model.awaited() if isinstance(model, WaitsOutside) else [] for model in +self._asked}
        if self._pauses or any(len(found) < self._asked[model] for model, found in waits.items()):
            return None
        return sorted(line for found in waits.values() for line in found)

    async def pause(self, seconds: float) -> None:
        """Sleeps. Raises BudgetSpent if the run has no time left afterwards."""
        left_s = self._budget.remaining_s
        self._pauses += 1
        try:
            if left_s is not None and seconds >= left_s:
                await self._sleep(left_s)
                raise BudgetSpent("seconds")
            await self._sleep(seconds)
        finally:
            self._pauses -= 1

    async def _choose(
        self, models: Sequence[LLM], given_up: Mapping[LLM, CallFailed], patience_s: float
    ) -> LLM:
        """The model to ask next, once it may be asked. Raises what `ask` raises."""
        while True:
            services = {model: self._service(model) for model in models if model not in given_up}
            left = [model for model, service in services.items() if not service.denied]
            if not left:
                raise _last(given_up, services)
            now_s = self._clock()
            ready = (model for model in left if services[model].may_be_asked(now_s))
            soonest = min(left, key=lambda model: (services[model].is_probed, services[model].retry_at_s))
            model = next(ready, soonest)
            service = services[model]
            pause_s = service.retry_at_s - now_s if service.failures else 0.0
            if all(services[each].is_out for each in left):
                deadline_s = max(services[each].since_s for each in left) + patience_s
                if service.failed_at_s >= deadline_s:
                    raise _out_of_service(services, patience_s)
                if service.is_probed:
                    self._settled.clear()
                    await self._settled.wait()
                    continue
                pause_s = min(pause_s, deadline_s - now_s)
                self._announce(services, service.retry_at_s, pause_s, patience_s)
            if pause_s <= 0:
                return model
            await self.pause(min(pause_s, LONGEST_PAUSE_S))

    def _announce(
        self, services: Mapping[LLM, Service], retry_at_s: float, pause_s: float, patience_s: float
    ) -> None:
        """Warns of a wait, once for all questions that wait."""
        if pause_s > 0 and retry_at_s != self._announced_s:
            self._announced_s = retry_at_s
            logger.warning(
                "no model answers (%s); asking again in %s, giving up after %s (proposer.patience_s)",
                _reasons(services),
                _span(pause_s),
                _span(patience_s),
            )

    async def _attempt(
        self, model: LLM, question: Question, attempt: int, read: Callable[[str], Result]
    ) -> Result:
        """Makes one call and notes what it says about the model's service."""
        service, asked_at_s = self._service(model), self._clock()
        was_out = service.is_out
        try:
            result = await self._once(model, question, attempt, read)
        except CallFailed as failed:
            logger.info("%s, attempt %d for %s: %s", model.name, attempt, question.purpose, failed)
            is_wrong = failed.outage and failed.cause is Cause.BAD_REQUEST and not service.answers
            if failed.cause is Cause.DENIED or is_wrong:
                if service.denied is None:
                    logger.warning("model %s is not asked again: %s", model.name, failed)
                service.denied = failed
            elif failed.outage:
                now_s = self._clock()
                service.failed(failed, asked_at_s=asked_at_s, now_s=now_s, jitter=self._jitter())
                if service.is_out and not was_out and len(self._services) > 1:
                    pause = _span(service.retry_at_s - now_s)
                    logger.warning(
                        "model %s is out of service, asking again in %s: %s", model.name, pause, failed
                    )
            else:
                service.answered()
            raise
        service.answered()
        if was_out:
            logger.warning("model %s answers again", model.name)
        return result

    async def _once(
        self, model: LLM, question: Question, attempt: int, read: Callable[[str], Result]
    ) -> Result:
        """Makes one call, within the budget, and records it."""
        most = question.most_tokens(model.limits)
        reserved = Cost(tokens=most.tokens, dollars=model.price.at_most(most))
        await self._reserve(reserved, reserved + reserved if question.optional else NOTHING)
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
            text = answer.text if answer else failed.text if failed else ""
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
                detail=storable(failed.detail) if failed else "",
                prompt_characters=len(question.system) + len(question.prompt),
                answer_characters=len(text),
                approximate=answer is not None and answer.approximate,
                answered_by=answer.model if answer else "",
                conversation=answer.conversation if answer else "",
            )
            self._record(call, question, storable(text[:LONGEST_TEXT]))

    async def _complete(self, model: LLM, question: Question) -> Answer:
        """Makes the call within the model's and the run's time limits."""
        remaining_s = self._budget.remaining_s
        limit_s = model.limits.timeout_s if remaining_s is None else min(remaining_s, model.limits.timeout_s)
        self._asked[model] += 1
        try:
            async with asyncio.timeout(limit_s):
                answer = await model.complete(question)
        except TimeoutError:
            raise CallFailed(Cause.TIMEOUT, f"no answer within {limit_s:g} s") from None
        finally:
            self._asked[model] -= 1
        return replace(answer, text=storable(answer.text))

    async def _reserve(self, most: Cost, leaving: Cost) -> None:
        """Waits while calls in flight may still leave room. Raises BudgetSpent."""
        while not self._budget.reserve_call(most, leaving=leaving):
            self._settled.clear()
            await self._settled.wait()

    def _service(self, model: LLM) -> Service:
        return self._services.setdefault(model, Service(tries=model.limits.tries))

    def _slot(self, model: LLM) -> asyncio.Semaphore:
        """One semaphore per provider, because its models share its limits."""
        provider = model.name.partition("/")[0]
        return self._at_a_time.setdefault(provider, asyncio.Semaphore(model.limits.concurrency))

    def _record(self, call: ModelCall, question: Question, text: str) -> None:
        line = {**asdict(call), "system": question.system, "prompt": question.prompt}
        line |= {"schema": question.schema, "answer": text}
        append_line(self._path, json.dumps(line))
        self._report(call)


def _read(answer: Answer, read: Callable[[str], Result]) -> Result:
    try:
        if len(answer.text) > LONGEST_TEXT:
            raise ValueError(f"the answer has {len(answer.text)} characters, more than {LONGEST_TEXT}")
        return read(answer.text)
    except ValueError as error:
        raise CallFailed(Cause.MALFORMED, str(error), usage=answer.usage, text=answer.text) from error


def _used(answer: Answer | None, failed: CallFailed | None, most: Usage) -> tuple[Usage, bool]:
    """The tokens of a call, and whether they had to be estimated: the provider may charge for an answer
    without saying what it used."""
    if answer is not None:
        return answer.usage or most, answer.usage is None
    assert failed is not None
    if failed.usage is None and failed.cause.may_be_charged:
        return most, True
    return failed.usage or Usage(), False


def _last(given_up: Mapping[LLM, CallFailed], services: Mapping[LLM, Service]) -> CallFailed:
    """Why no model is left to ask: the last failure of those given up or, if there are none, that all deny
    access."""
    return [*given_up.values()][-1] if given_up else OutOfService(Cause.DENIED, _reasons(services))


def _out_of_service(services: Mapping[LLM, Service], patience_s: float) -> OutOfService:
    last = max((each for each in services.values() if each.last), key=lambda each: each.failed_at_s).last
    assert last is not None
    return OutOfService(last.cause, f"{_reasons(services)}; proposer.patience_s={patience_s:g} is over")


def _reasons(services: Mapping[LLM, Service]) -> str:
    reasons = ((model.name, service.denied or service.last) for model, service in services.items())
    return "; ".join(f"{name}: {reason}" for name, reason in reasons)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def _feedback(failed: CallFailed, text: str) -> str:
    """Shows the model its unusable answer and the precise reason."""
    text = text.strip()
    if len(text) > SHOWN_AGAIN:
        text = f"{text[: SHOWN_AGAIN // 2]}\n[…]\n{text[-SHOWN_AGAIN // 2 :]}"
    shown = f"\n\nThe answer was:\n\n~~~~\n{text}\n~~~~" if text else ""
    how = "more briefly" if failed.cause is Cause.CUT_OFF else "without that fault"
    if failed.cause is Cause.CUT_OFF and text:
        how += ", or write only the rest, from exactly where the answer ends"
    again = f"Answer the whole question again {how}."
    return f"# An earlier answer could not be used\n\nReason: {failed}. {again}{shown}"
