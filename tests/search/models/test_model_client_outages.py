"""Models that are out of service: which others are asked, how long questions wait, and what they say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from search.models.client import LONE_FAILURES
from search.models.service import LONGEST_PAUSE_S
from search.records.budget import Budget, BudgetSpent
from search.records.model_calls import Answer, CallFailed, Cause, OutOfService, Question
from tests.search.fakes import Clock
from tests.search.model_client_fakes import ANSWER, LIMITS, QUESTION, Act, FakeModel, WatchedClient, failing

OUTAGES = [cause for cause in Cause if cause.outage]


def until(watched: WatchedClient, after_s: float, failure: CallFailed) -> Act:
    """Out of service for seconds of the clock, then an answer."""
    begin_s = watched.clock.now_s

    async def act(question: Question) -> Answer:
        await asyncio.sleep(0)
        if watched.clock.now_s < begin_s + after_s:
            raise CallFailed(failure.cause, failure.detail, retry_after_s=failure.retry_after_s)
        return ANSWER

    return act


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def everyone(watched: WatchedClient, n: int, *models: FakeModel) -> list[object]:
    """The results, or failures, of n questions at a time."""

    async def ask() -> list[object]:
        asking = (watched.ask_in_loop(*models) for _ in range(n))
        return list(await asyncio.gather(*asking, return_exceptions=True))

    return asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize("cause", OUTAGES)
@pytest.mark.parametrize("outage_s", [2.0, 600.0, 3600.0])
def test_an_outage_costs_every_question_time_and_nothing_else(
    watched: WatchedClient, cause: Cause, outage_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    watched.patience_s = 7200.0
    model = FakeModel(until(watched, outage_s, failing(cause)))
    assert everyone(watched, 32, model) == ["text"] * 32
    waited_s = watched.clock.now_s - 1000.0
    assert outage_s <= waited_s <= 2 * outage_s + LONGEST_PAUSE_S
    failed = sum(call.cause is cause for call in watched.calls)
    waves = LIMITS.tries * LIMITS.concurrency
    assert failed <= waves + 12 + waited_s / LONGEST_PAUSE_S, "one question finds out for all"
    said = warnings(caplog)
    assert bool(said) == (outage_s > 2)
    assert all("no model answers (fake/a: " in line for line in said[:-1])


def test_a_wait_is_announced_once_for_all_questions(
    watched: WatchedClient, caplog: pytest.LogCaptureFixture
) -> None:
    watched.patience_s = 14400.0
    everyone(watched, 8, FakeModel(until(watched, 30.0, failing(Cause.UNREACHABLE))))
    assert warnings(caplog) == [
        "no model answers (fake/a: unreachable: why); asking again in 4 s, giving up after 4 h "
        "(proposer.patience_s)",
        *(
            f"no model answers (fake/a: unreachable: why); asking again in {pause_s} s, giving up after 4 h "
            "(proposer.patience_s)"
            for pause_s in (8, 16)
        ),
        "model fake/a answers again",
    ]


@pytest.mark.parametrize("cause", OUTAGES)
def test_another_model_is_asked_during_an_outage_and_the_first_one_again_afterwards(
    watched: WatchedClient, cause: Cause
) -> None:
    first = FakeModel(until(watched, 100.0, failing(cause)))
    second = FakeModel(name="other/b")

    async def before_and_after() -> None:
        await asyncio.gather(*(watched.ask_in_loop(first, second) for _ in range(16)))
        assert len(second.asked) == 16
        assert watched.clock.now_s - 1000.0 < 15.0, "no question waits for the first model to come back"
        watched.clock.now_s += 100.0
        await watched.ask_in_loop(first, second)
        await asyncio.gather(*(watched.ask_in_loop(first, second) for _ in range(8)))
        assert len(second.asked) == 16

    asyncio.run(before_and_after())


def test_a_model_that_asks_for_a_long_pause_is_not_waited_for_while_another_answers(
    watched: WatchedClient, caplog: pytest.LogCaptureFixture
) -> None:
    first = FakeModel(failing(Cause.RATE_LIMITED, retry_after_s=86400.0))
    second = FakeModel(name="other/b")
    for _ in range(10):
        assert watched.ask(first, second) == "text"
    assert (len(first.asked), len(second.asked)) == (1, 10)
    assert watched.pauses_s == []
    assert warnings(caplog) == ["model fake/a is out of service, asking again in 24 h: rate limited: why"]


@pytest.mark.parametrize("retry_after_s", [None, 600.0, 86400.0, 1e300])
@pytest.mark.parametrize("patience_s", [0.0, 90.0, 5000.0])
def test_patience_is_never_exceeded_and_ends_with_a_last_question(
    watched: WatchedClient, retry_after_s: float | None, patience_s: float
) -> None:
    watched.patience_s = patience_s
    models = [
        FakeModel(failing(Cause.SERVER_ERROR, retry_after_s=retry_after_s), name=name)
        for name in ("fake/a", "other/b")
    ]
    found = everyone(watched, 8, *models)
    assert all(isinstance(each, OutOfService) for each in found), found
    waited_s = watched.clock.now_s - 1000.0
    assert patience_s <= waited_s <= patience_s + 7.0
    assert str(found[0]).startswith("no model answers (fake/a: server error: why; other/b: server error: why")
    if patience_s:
        asked = sum(len(model.asked) for model in models)
        assert asked <= 2 * LIMITS.tries * LIMITS.concurrency + 4 + 2 * (12 + patience_s / LONGEST_PAUSE_S)


def test_a_provider_that_is_back_earlier_than_it_said_is_found_at_the_end_of_patience(
    watched: WatchedClient,
) -> None:
    watched.patience_s = 5000.0
    model = FakeModel(until(watched, 10.0, failing(Cause.RATE_LIMITED, retry_after_s=86400.0)))
    assert watched.ask(model) == "text"
    assert len(model.asked) == 2
    assert watched.clock.now_s == pytest.approx(1000.0 + 5000.0)


def test_patience_is_for_the_time_in_which_no_model_answers(watched: WatchedClient) -> None:
    """The second model's outage begins when the first one has been out of service for long."""
    watched.patience_s = 1000.0
    first = FakeModel(failing(Cause.SERVER_ERROR))
    watched.ask(first, FakeModel(name="other/b"))
    watched.clock.now_s += 5000.0
    late = FakeModel(until(watched, 900.0, failing(Cause.UNREACHABLE)), name="other/c")
    assert watched.ask(first, late) == "text"


@pytest.mark.parametrize(
    "failure",
    [
        *(failing(cause) for cause in (Cause.REFUSED, Cause.MALFORMED, Cause.EMPTY, Cause.CUT_OFF)),
        failing(Cause.BAD_REQUEST),
        failing(Cause.DENIED),
    ],
    ids=lambda failure: failure.cause,
)
def test_another_model_answers_for_one_whose_answers_cannot_be_used(
    watched: WatchedClient, failure: CallFailed
) -> None:
    first, second = FakeModel(failure), FakeModel(name="other/b")
    assert watched.ask(first, second) == "text"
    assert len(first.asked) == (LIMITS.tries if failure.cause.retryable else 1)
    assert second.asked[0].prompt == "prompt", "it is not told of another model's answers"
    assert watched.pauses_s == []


def test_all_that_deny_access_are_named(watched: WatchedClient) -> None:
    models = [FakeModel(failing(Cause.DENIED), name=name) for name in ("fake/a", "other/b")]
    for _ in range(2):
        with pytest.raises(OutOfService, match=r"fake/a: access denied: why; other/b: access denied: why"):
            watched.ask(*models)
    assert [len(model.asked) for model in models] == [1, 1]


@pytest.mark.parametrize(
    ("cause", "times"),
    [(Cause.SERVER_ERROR, LONE_FAILURES), (Cause.CONNECTION, LONE_FAILURES), (Cause.TIMEOUT, 1)],
)
def test_a_question_that_a_service_fails_alone_is_given_up(
    watched: WatchedClient, cause: Cause, times: int
) -> None:
    """The server fails one prompt again and again, and answers all others."""
    watched.patience_s = 1e6

    async def picky(question: Question) -> Answer:
        await asyncio.sleep(0)
        if question.prompt == "too much":
            raise failing(cause)
        return ANSWER

    model = FakeModel(picky)

    async def both() -> CallFailed:
        asking = asyncio.create_task(
            watched.model_client.ask(
                [model], replace(QUESTION, prompt="too much"), str, patience_s=watched.patience_s
            )
        )
        while not asking.done():
            await watched.ask_in_loop(model)
        failed = asking.exception()
        assert isinstance(failed, CallFailed)
        return failed

    failed = asyncio.run(both())
    assert failed.cause is cause
    assert not isinstance(failed, OutOfService)
    alone = sum(question.prompt == "too much" for question in model.asked)
    assert times * LIMITS.tries <= alone <= (times + 1) * LIMITS.tries


@pytest.mark.slow
def test_a_rate_limit_starves_no_question(watched: WatchedClient) -> None:
    """One call a minute is answered."""
    watched.patience_s = 600.0
    free_at_s = watched.clock.now_s

    async def one_a_minute(question: Question) -> Answer:
        nonlocal free_at_s
        await asyncio.sleep(0)
        if watched.clock.now_s < free_at_s:
            raise CallFailed(Cause.RATE_LIMITED, "slow", retry_after_s=free_at_s - watched.clock.now_s)
        free_at_s = watched.clock.now_s + 60.0
        return ANSWER

    assert everyone(watched, 40, FakeModel(one_a_minute)) == ["text"] * 40


def test_an_unknown_path_is_an_outage_only_after_an_answer(watched: WatchedClient) -> None:
    """A gateway says 404 while its server is away, and also when the address was wrong from the start."""
    watched.patience_s = 600.0
    gone = failing(Cause.BAD_REQUEST, outage=True)
    with pytest.raises(OutOfService, match="bad request"):
        watched.ask(FakeModel(gone))
    assert len(watched.calls) == 1
    model = FakeModel(ANSWER, gone, gone, gone, gone, gone, ANSWER, name="fake/c")
    assert [watched.ask(model), watched.ask(model)] == ["text", "text"]
    assert len(model.asked) == 7


def test_the_time_of_the_run_is_used_to_its_end(tmp_path: Path) -> None:
    clock = Clock()
    budget = Budget(seconds=100.0, clock=clock)
    watched = WatchedClient(path=tmp_path / "calls", budget=budget, patience_s=7200.0)
    with pytest.raises(BudgetSpent, match="seconds"):
        watched.ask(FakeModel(failing(Cause.RATE_LIMITED, retry_after_s=3600.0)))
    assert watched.pauses_s == [100.0]


def test_a_probe_that_is_cancelled_lets_another_question_find_out(watched: WatchedClient) -> None:
    watched.patience_s = 1e6
    hang = asyncio.Event()
    asked = 0

    async def act(question: Question) -> Answer:
        nonlocal asked
        asked += 1
        if asked <= LIMITS.tries:
            raise failing(Cause.UNREACHABLE)
        if asked == LIMITS.tries + 1:
            await hang.wait()
        return ANSWER

    async def two() -> object:
        model = FakeModel(act)
        first = asyncio.create_task(watched.ask_in_loop(model))
        while asked <= LIMITS.tries:
            await asyncio.sleep(0)
        second = asyncio.create_task(watched.ask_in_loop(model))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        first.cancel()
        return await second

    assert asyncio.run(two()) == "text"
