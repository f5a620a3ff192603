from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.budget import Budget, BudgetSpent, Cost
from search.desk import FIRST_PAUSE_S, LONGEST_PAUSE_S, Desk
from search.llm import (
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
from tests.search.fakes import Clock

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
class Office:
    """A desk, and what it does."""

    path: Path
    budget: Budget = field(default_factory=Budget)
    jitter: float = 1.0
    pauses_s: list[float] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desk = Desk(
            budget=self.budget,
            path=self.path,
            report=self.calls.append,
            sleep=self._sleep,
            jitter=lambda: self.jitter,
        )

    async def _sleep(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)

    def ask(self, model: FakeModel, read: Callable[[str], Any] = str) -> Any:
        return asyncio.run(self.desk.ask(model, QUESTION, read))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(path=tmp_path / "model_calls.jsonl")


def failing(cause: Cause, **more: Any) -> CallFailed:
    return CallFailed(cause, "why", **more)


def test_an_answer_is_read_paid_for_and_written_down(office: Office) -> None:
    assert office.ask(FakeModel(), str.upper) == "TEXT"
    (call,) = office.calls
    assert (call.model, call.purpose, call.about, call.attempt) == ("fake/a", Purpose.CODE, "r0i0", 1)
    assert (call.usage, call.dollars, call.cause, call.estimated) == (USED, float(OF_USED), None, False)
    assert (office.budget.calls_spent, office.budget.tokens_spent) == (1, 250)
    assert office.budget.dollars_spent == OF_USED
    texts = {"system": "system", "prompt": "prompt", "schema": {"a": 1}, "answer": "text"}
    assert office.lines() == [{**asdict(call), **texts}]


def test_each_attempt_is_a_line_and_a_report(office: Office) -> None:
    half = failing(Cause.CUT_OFF, usage=USED, text="ha")
    assert office.ask(FakeModel(failing(Cause.SERVER_ERROR), half, ANSWER)) == "text"
    assert [(call.attempt, call.cause) for call in office.calls] == [
        (1, Cause.SERVER_ERROR),
        (2, Cause.CUT_OFF),
        (3, None),
    ]
    lines = office.lines()
    assert [line["answer"] for line in lines] == ["", "ha", "text"]
    assert [line["id"] for line in lines] == [call.id for call in office.calls]
    assert len({call.id for call in office.calls}) == 3
    assert [call.usage for call in office.calls] == [Usage(), USED, USED]
    assert office.budget.dollars_spent == 2 * OF_USED


def test_pauses_double_up_to_the_longest(office: Office) -> None:
    model = FakeModel(failing(Cause.SERVER_ERROR), limits=replace(LIMITS, tries=9))
    with pytest.raises(CallFailed):
        office.ask(model)
    assert office.pauses_s == [
        *(FIRST_PAUSE_S * factor for factor in (1, 2, 4, 8, 16, 32)),
        LONGEST_PAUSE_S,
        LONGEST_PAUSE_S,
    ]


@pytest.mark.parametrize(("jitter", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_a_pause_is_jittered_between_half_and_all(office: Office, jitter: float, share: float) -> None:
    office.jitter = jitter
    office.ask(FakeModel(failing(Cause.CONNECTION), ANSWER))
    assert office.pauses_s == [FIRST_PAUSE_S * share]


@pytest.mark.parametrize(("wished_s", "pause_s"), [(17.0, 17.0), (0.1, FIRST_PAUSE_S)])
def test_a_pause_is_not_shorter_than_the_provider_asks_for(
    office: Office, wished_s: float, pause_s: float
) -> None:
    office.ask(FakeModel(failing(Cause.RATE_LIMITED, retry_after_s=wished_s), ANSWER))
    assert office.pauses_s == [pause_s]


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause.passing])
def test_what_may_pass_is_asked_again_and_given_up_after_its_tries(office: Office, cause: Cause) -> None:
    model = FakeModel(failing(cause))
    with pytest.raises(CallFailed) as caught:
        office.ask(model)
    assert caught.value.cause is cause
    assert [call.cause for call in office.calls] == [cause] * LIMITS.tries
    assert len(model.asked) == LIMITS.tries
    assert len(office.pauses_s) == LIMITS.tries - 1


@pytest.mark.parametrize("cause", [Cause.DENIED, Cause.BAD_REQUEST])
def test_what_does_not_pass_is_not_asked_again(office: Office, cause: Cause) -> None:
    with pytest.raises(CallFailed):
        office.ask(FakeModel(failing(cause)))
    assert [call.cause for call in office.calls] == [cause]
    assert office.pauses_s == []
    assert office.budget.dollars_spent == 0


def test_a_model_is_told_what_was_wrong_with_its_last_answer(office: Office) -> None:
    def read(text: str) -> str:
        if text != "good":
            raise ValueError(f"{text} is not good")
        return text

    bad, worse, good = (replace(ANSWER, text=text) for text in ("bad", "worse", "good"))
    model = FakeModel(bad, worse, good)
    assert office.ask(model, read) == "good"
    first, second, third = (question.prompt for question in model.asked)
    assert first == "prompt"
    assert second.startswith("prompt\n\n")
    assert "bad is not good" in second
    assert "worse is not good" in third
    assert "bad is" not in third
    assert [call.cause for call in office.calls] == [Cause.MALFORMED, Cause.MALFORMED, None]
    assert [line["answer"] for line in office.lines()] == ["bad", "worse", "good"]
    assert office.budget.dollars_spent == 3 * OF_USED
    assert office.pauses_s == [0.0, 0.0]


@pytest.mark.parametrize("cause", [Cause.RATE_LIMITED, Cause.TIMEOUT, Cause.REFUSED])
def test_a_model_is_not_told_of_what_it_cannot_help(office: Office, cause: Cause) -> None:
    model = FakeModel(failing(cause), ANSWER)
    office.ask(model)
    assert [question.prompt for question in model.asked] == ["prompt", "prompt"]


@pytest.mark.parametrize("cause", list(Cause))
def test_a_lost_call_counts_as_its_reservation_others_as_reported(office: Office, cause: Cause) -> None:
    with pytest.raises(CallFailed):
        office.ask(FakeModel(failing(cause), limits=replace(LIMITS, tries=1)))
    (call,) = office.calls
    assert call.estimated == cause.lost
    assert call.usage == (MOST if cause.lost else Usage())
    assert office.budget.tokens_spent == call.usage.tokens
    assert office.budget.dollars_spent == (PRICE.at_most(MOST) if cause.lost else 0)


def test_a_lost_call_whose_usage_is_known_counts_as_that(office: Office) -> None:
    with pytest.raises(CallFailed):
        office.ask(FakeModel(failing(Cause.TIMEOUT, usage=USED), limits=replace(LIMITS, tries=1)))
    assert (office.calls[0].estimated, office.budget.dollars_spent) == (False, OF_USED)


async def forever(question: Question) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_slow_call_is_cut_at_the_models_limit(office: Office) -> None:
    with pytest.raises(CallFailed, match=r"no answer within 0\.02 s"):
        office.ask(FakeModel(forever, limits=replace(LIMITS, timeout_s=0.02, tries=1)))
    assert office.calls[0].cause is Cause.TIMEOUT
    assert office.calls[0].seconds == pytest.approx(0.02, abs=0.5)


def test_a_slow_call_is_cut_at_the_runs_limit(tmp_path: Path) -> None:
    clock = Clock()
    office = Office(path=tmp_path / "calls", budget=Budget(seconds=100, clock=clock))
    clock.now_s += 99.98

    async def until_the_end(question: Question) -> Answer:
        try:
            return await forever(question)
        finally:
            clock.now_s += 0.02

    with pytest.raises(BudgetSpent, match=r"budget\.seconds"):
        office.ask(FakeModel(until_the_end))
    (call,) = office.calls
    assert (call.cause, call.detail) == (Cause.TIMEOUT, "no answer within 0.02 s")
    assert call.estimated
    assert office.budget.calls_reserved == 0


def test_a_cancelled_call_is_settled_and_written_down(office: Office) -> None:
    async def cancelled() -> None:
        asking = asyncio.create_task(office.desk.ask(FakeModel(forever), QUESTION, str))
        while not office.budget.calls_reserved:
            await asyncio.sleep(0)
        assert office.budget.tokens_reserved == MOST.tokens
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(cancelled())
    assert (office.budget.calls_reserved, office.budget.tokens_reserved) == (0, 0)
    assert office.budget.tokens_spent == MOST.tokens
    (call,) = office.calls
    assert (call.cause, call.detail, call.estimated) == (Cause.CONNECTION, "it was broken off", True)
    assert len(office.lines()) == 1


def test_models_of_one_provider_share_its_limit_on_calls_at_a_time(office: Office) -> None:
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
        await asyncio.gather(*(office.desk.ask(model, QUESTION, str) for model in models for _ in range(10)))

    asyncio.run(everyone())
    assert most == {"fake": LIMITS.concurrency, "other": LIMITS.concurrency}
    assert len(office.calls) == 30


def test_a_call_waits_for_one_under_way_to_leave_room(tmp_path: Path) -> None:
    # The cap has room for one reservation and one answer at a time, not for two reservations.
    cap = PRICE.at_most(MOST) + OF_USED
    office = Office(path=tmp_path / "calls", budget=Budget(dollars=float(cap)))
    gate = asyncio.Event()

    async def held(question: Question) -> Answer:
        await gate.wait()
        return ANSWER

    model = FakeModel(held)

    async def two() -> list[str]:
        both = [asyncio.create_task(office.desk.ask(model, QUESTION, str)) for _ in range(2)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(model.asked) == 1
        gate.set()
        return list(await asyncio.gather(*both))

    assert asyncio.run(two()) == ["text", "text"]
    with pytest.raises(BudgetSpent, match=r"budget\.dollars"):
        office.ask(model)
    assert office.budget.exhausted(0) == "dollars"
    assert len(office.calls) == 2


class WatchedBudget(Budget):
    """Checks its caps whenever something changes."""

    def reserve_call(self, most: Cost) -> bool:
        granted = super().reserve_call(most)
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
            spent, reserved = getattr(self, f"{name}_spent"), getattr(self, f"{name}_reserved")
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
    office = Office(path=tmp_path_factory.mktemp("calls") / "calls", budget=budget)
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
        task = asyncio.create_task(office.desk.ask(asked[number % len(asked)], QUESTION, read_good))
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
    assert (budget.calls_reserved, budget.tokens_reserved) == (0, 0)
    assert budget.dollars_reserved == 0
    assert budget.calls_spent == len(office.calls) == sum(len(model.asked) for model in asked)
    assert budget.tokens_spent == sum(call.usage.tokens for call in office.calls)
    assert float(budget.dollars_spent) == pytest.approx(sum(call.dollars for call in office.calls))


def test_an_answer_without_usage_counts_at_its_reservation(tmp_path: Path) -> None:
    async def silent(question: Question) -> Answer:
        return Answer(text="hello", usage=None)

    office = Office(path=tmp_path / "calls")
    office.ask(FakeModel(silent))
    (call,) = office.calls
    assert call.estimated
    assert call.usage.output_tokens == FakeModel(silent).limits.output_tokens


def test_a_pause_that_is_longer_than_the_run_ends_it(tmp_path: Path) -> None:
    async def later(question: Question) -> Answer:
        raise CallFailed(Cause.RATE_LIMITED, "quota", retry_after_s=3600)

    office = Office(path=tmp_path / "calls", budget=Budget(seconds=100))
    with pytest.raises(BudgetSpent, match="seconds"):
        office.ask(FakeModel(later))
    assert len(office.calls) == 1
