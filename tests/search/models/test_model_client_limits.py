"""Limits on calls: their time, how many at a time, and what becomes of a call that is cut off."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from search.records.budget import Budget, BudgetSpent
from search.records.model_calls import Answer, CallFailed, Cause, Question
from tests.search.fakes import Clock
from tests.search.model_client_fakes import (
    ANSWER,
    LIMITS,
    MOST,
    Act,
    FakeModel,
    WatchedClient,
    forever,
)


def test_a_slow_call_is_cut_at_the_models_limit(watched: WatchedClient) -> None:
    with pytest.raises(CallFailed, match=r"no answer within 0\.02 s"):
        watched.ask(FakeModel(forever, limits=replace(LIMITS, timeout_s=0.02, tries=1)))
    assert watched.calls[0].cause is Cause.TIMEOUT
    assert watched.calls[0].seconds == pytest.approx(0.02, abs=0.5)


def test_a_slow_call_is_cut_at_the_runs_limit(tmp_path: Path) -> None:
    clock = Clock()
    watched = WatchedClient(path=tmp_path / "calls", budget=Budget(seconds=100, clock=clock))
    clock.now_s += 99.98

    async def until_the_end(question: Question) -> Answer:
        try:
            return await forever(question)
        finally:
            clock.now_s += 0.02

    with pytest.raises(BudgetSpent, match=r"budget\.seconds"):
        watched.ask(FakeModel(until_the_end))
    (call,) = watched.calls
    assert (call.cause, call.detail) == (Cause.TIMEOUT, "no answer within 0.02 s")
    assert call.estimated
    assert watched.budget.cost_reserved.calls == 0


def test_a_cancelled_call_is_settled_and_written_down(watched: WatchedClient) -> None:
    async def cancelled() -> None:
        asking = asyncio.create_task(watched.ask_in_loop(FakeModel(forever)))
        while not watched.budget.cost_reserved.calls:
            await asyncio.sleep(0)
        assert watched.budget.cost_reserved.tokens == MOST.tokens
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(cancelled())
    assert (watched.budget.cost_reserved.calls, watched.budget.cost_reserved.tokens) == (0, 0)
    assert watched.budget.cost_spent.tokens == MOST.tokens
    (call,) = watched.calls
    assert (call.cause, call.detail, call.estimated) == (Cause.CONNECTION, "the call was interrupted", True)
    assert len(watched.lines()) == 1


def test_models_of_one_provider_share_its_limit_on_calls_at_a_time(watched: WatchedClient) -> None:
    under_way = {"fake": 0, "other": 0}
    most = dict(under_way)

    def act(provider: str) -> Act:
        async def counted(question: Question) -> Answer:
            under_way[provider] += 1
            most[provider] = max(most[provider], under_way[provider])
            for _ in range(20):
                await asyncio.sleep(0)
            under_way[provider] -= 1
            return ANSWER

        return counted

    models = [FakeModel(act(name.partition("/")[0]), name=name) for name in ("fake/a", "fake/b", "other/a")]

    async def everyone() -> None:
        await asyncio.gather(*(watched.ask_in_loop(model) for model in models for _ in range(10)))

    asyncio.run(everyone())
    assert most == {"fake": LIMITS.concurrency, "other": LIMITS.concurrency}
    assert len(watched.calls) == 30


def test_a_pause_that_is_longer_than_the_run_ends_it(tmp_path: Path) -> None:
    async def later(question: Question) -> Answer:
        raise CallFailed(Cause.RATE_LIMITED, "quota", retry_after_s=3600)

    budget = Budget(seconds=100)
    watched = WatchedClient(path=tmp_path / "calls", budget=budget, patience_s=7200)
    with pytest.raises(BudgetSpent, match="seconds"):
        watched.ask(FakeModel(later))
    assert len(watched.calls) == 1
