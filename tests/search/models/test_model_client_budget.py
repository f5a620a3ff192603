"""What calls cost: reservations, what they are settled at, and caps that are never passed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.records.budget import NOTHING, Budget, BudgetSpent, Cost
from search.records.model_calls import Answer, CallFailed, Cause, Limits, Price, Question, Usage
from tests.search.model_client_fakes import (
    ANSWER,
    LIMITS,
    MOST,
    OF_USED,
    PRICE,
    QUESTION,
    USED,
    Act,
    FakeModel,
    WatchedClient,
    failing,
)


@pytest.mark.parametrize("cause", list(Cause))
def test_a_lost_call_counts_as_its_reservation_others_as_reported(
    watched: WatchedClient, cause: Cause
) -> None:
    with pytest.raises(CallFailed):
        watched.ask(FakeModel(failing(cause), limits=replace(LIMITS, tries=1)))
    (call,) = watched.calls
    assert call.estimated == cause.may_be_charged
    assert call.usage == (MOST if cause.may_be_charged else Usage())
    assert watched.budget.cost_spent.tokens == call.usage.tokens
    assert watched.budget.cost_spent.dollars == (PRICE.at_most(MOST) if cause.may_be_charged else 0)


def test_a_lost_call_whose_usage_is_known_counts_as_that(watched: WatchedClient) -> None:
    with pytest.raises(CallFailed):
        watched.ask(FakeModel(failing(Cause.TIMEOUT, usage=USED), limits=replace(LIMITS, tries=1)))
    assert (watched.calls[0].estimated, watched.budget.cost_spent.dollars) == (False, OF_USED)


def test_a_call_waits_for_one_under_way_to_leave_room(tmp_path: Path) -> None:
    # The cap has room for one reservation and one answer at a time, not for two reservations.
    cap = PRICE.at_most(MOST) + OF_USED
    watched = WatchedClient(path=tmp_path / "calls", budget=Budget(dollars=float(cap)))
    gate = asyncio.Event()

    async def held(question: Question) -> Answer:
        await gate.wait()
        return ANSWER

    model = FakeModel(held)

    async def two() -> list[str]:
        both = [asyncio.create_task(watched.ask_in_loop(model)) for _ in range(2)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(model.asked) == 1
        gate.set()
        return list(await asyncio.gather(*both))

    assert asyncio.run(two()) == ["text", "text"]
    with pytest.raises(BudgetSpent, match=r"budget\.dollars"):
        watched.ask(model)
    assert watched.budget.exhausted(0) == "dollars"
    assert len(watched.calls) == 2


class WatchedBudget(Budget):
    """Checks its caps whenever something changes."""

    def reserve_call(self, most: Cost, *, leaving: Cost = NOTHING) -> bool:
        granted = super().reserve_call(most, leaving=leaving)
        self.check()
        return granted

    def settle_call(self, most: Cost, spent: Cost) -> None:
        assert spent.tokens <= most.tokens
        assert spent.dollars <= most.dollars
        super().settle_call(most, spent)
        self.check()

    def check(self) -> None:
        for name in ("calls", "tokens", "dollars"):
            cap = getattr(self, name)
            spent, reserved = getattr(self.cost_spent, name), getattr(self.cost_reserved, name)
            assert spent >= 0
            assert reserved >= 0
            assert cap is None or spent + reserved <= cap, name


@dataclass(frozen=True, kw_only=True)
class Fate:
    """One call's fate: how many turns it takes, how it fails, and its shares of the most that it may use."""

    turns: int
    cause: Cause | None
    readable: bool
    reported: bool
    input_share: float
    cached_share: float
    output_share: float


shares = st.floats(0, 1)
prices = st.none() | st.integers(0, 10**9).map(lambda micro: micro / 10**6)
caps = st.none() | st.floats(0.5, 6)
fates = st.builds(
    Fate,
    turns=st.integers(0, 6),
    cause=st.none() | st.sampled_from(Cause),
    readable=st.booleans(),
    reported=st.booleans(),
    input_share=shares,
    cached_share=shares,
    output_share=shares,
)
models = st.tuples(
    st.builds(Price, input=prices, output=prices, cached_input=prices),
    st.builds(
        Limits,
        output_tokens=st.integers(1, 5_000),
        timeout_s=st.just(60.0),
        concurrency=st.integers(1, 5),
        tries=st.integers(1, 3),
    ),
)


def act_of(fate: Fate, limits: Limits) -> Act:
    async def act(question: Question) -> Answer:
        for _ in range(fate.turns):
            await asyncio.sleep(0)
        most = question.most_tokens(limits)
        input_tokens = int(most.input_tokens * fate.input_share)
        usage = Usage(
            input_tokens=input_tokens,
            cached_tokens=int(input_tokens * fate.cached_share),
            output_tokens=int(most.output_tokens * fate.output_share),
        )
        if fate.cause is not None:
            raise CallFailed(fate.cause, "why", usage=usage if fate.reported else None)
        return Answer(text="good" if fate.readable else "bad", usage=usage)

    return act


def read_good(text: str) -> str:
    if text != "good":
        raise ValueError("not good")
    return text


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    chosen=st.lists(models, min_size=1, max_size=3),
    one_provider=st.booleans(),
    plan=st.lists(fates, min_size=1, max_size=12),
    asks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans()), min_size=1, max_size=12),
    calls=st.none() | st.integers(1, 20),
    tokens=caps,
    dollars=caps,
)
def test_spent_and_reserved_never_pass_a_cap(
    tmp_path_factory: pytest.TempPathFactory,
    chosen: list[tuple[Price, Limits]],
    one_provider: bool,
    plan: list[Fate],
    asks: list[tuple[int, int, bool]],
    calls: int | None,
    tokens: float | None,
    dollars: float | None,
) -> None:
    """Whatever models cost, how long they take, how they fail, and when somebody stops waiting. The caps on
    tokens and dollars are in calls of the dearest model."""
    most = [(QUESTION.most_tokens(limits), price) for price, limits in chosen]
    most_tokens = max(usage.tokens for usage, _ in most)
    most_dollars = float(max(price.at_most(usage) for usage, price in most))
    budget = WatchedBudget(
        calls=calls,
        tokens=None if tokens is None else int(tokens * most_tokens),
        dollars=(dollars or 0) * most_dollars or None,
    )
    watched = WatchedClient(path=tmp_path_factory.mktemp("calls") / "calls", budget=budget)
    asked = [
        FakeModel(
            *(act_of(fate, limits) for fate in plan),
            name=f"{'fake' if one_provider else n}/{n}",
            price=price,
            limits=limits,
        )
        for n, (price, limits) in enumerate(chosen)
    ]

    async def one(number: int, turns: int, stopped: bool) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        task = asyncio.create_task(watched.ask_in_loop(asked[number % len(asked)], read=read_good))
        if stopped:
            for _ in range(turns * 2):
                await asyncio.sleep(0)
            task.cancel()
        try:
            assert await task == "good"
        except (CallFailed, BudgetSpent):
            pass
        except asyncio.CancelledError:
            assert stopped

    async def everyone() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(one(*ask) for ask in asks))

    asyncio.run(everyone())
    assert (budget.cost_reserved.calls, budget.cost_reserved.tokens) == (0, 0)
    assert budget.cost_reserved.dollars == 0
    assert budget.cost_spent.calls == len(watched.calls) == sum(len(model.asked) for model in asked)
    assert budget.cost_spent.tokens == sum(call.usage.tokens for call in watched.calls)
    assert float(budget.cost_spent.dollars) == pytest.approx(sum(call.dollars for call in watched.calls))


def test_an_answer_without_usage_counts_at_its_reservation(tmp_path: Path) -> None:
    async def silent(question: Question) -> Answer:
        return Answer(text="hello", usage=None)

    watched = WatchedClient(path=tmp_path / "calls")
    watched.ask(FakeModel(silent))
    (call,) = watched.calls
    assert call.estimated
    assert call.usage.output_tokens == FakeModel(silent).limits.output_tokens
