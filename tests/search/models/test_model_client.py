"""What becomes of one question: the answer, the record of each call, and whether it is asked again."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from search.models.service import FIRST_PAUSE_S, LONGEST_PAUSE_S
from search.observers.calls import read_texts
from search.records.model_calls import CallFailed, Cause, Purpose, Usage
from tests.search.model_client_fakes import ANSWER, LIMITS, OF_USED, USED, FakeModel, WatchedClient, failing


def test_an_answer_is_read_paid_for_and_written_down(watched: WatchedClient) -> None:
    assert watched.ask(FakeModel(), read=str.upper) == "TEXT"
    (call,) = watched.calls
    assert (call.model, call.purpose, call.about, call.attempt) == ("fake/a", Purpose.CODE, "r0i0", 1)
    assert (call.usage, call.dollars, call.cause, call.estimated) == (USED, float(OF_USED), None, False)
    assert (watched.budget.cost_spent.calls, watched.budget.cost_spent.tokens) == (1, 250)
    assert watched.budget.cost_spent.dollars == OF_USED
    texts = {"system": "system", "prompt": "prompt", "schema": {"a": 1}, "answer": "text"}
    assert watched.lines() == [{**asdict(call), **texts}]


def test_a_call_after_a_torn_line_is_a_whole_line(watched: WatchedClient, tmp_path: Path) -> None:
    """The process before was killed while it wrote."""
    path = tmp_path / "model_calls.jsonl"
    path.write_text('{"id": "000001", "promp')
    watched.ask(FakeModel())
    (texts,) = read_texts(tmp_path).values()
    assert texts.answer == "text"


def test_each_attempt_is_a_line_and_a_report(watched: WatchedClient) -> None:
    half = failing(Cause.CUT_OFF, usage=USED, text="te")
    assert watched.ask(FakeModel(failing(Cause.SERVER_ERROR), half, ANSWER)) == "text"
    assert [(call.attempt, call.cause) for call in watched.calls] == [
        (1, Cause.SERVER_ERROR),
        (2, Cause.CUT_OFF),
        (3, None),
    ]
    lines = watched.lines()
    assert [line["answer"] for line in lines] == ["", "te", "text"]
    assert [line["id"] for line in lines] == [call.id for call in watched.calls]
    assert len({call.id for call in watched.calls}) == 3
    assert [call.usage for call in watched.calls] == [Usage(), USED, USED]
    assert watched.budget.cost_spent.dollars == 2 * OF_USED


def test_pauses_double_up_to_the_longest(watched: WatchedClient) -> None:
    watched.patience_s = 1200.0
    with pytest.raises(CallFailed):
        watched.ask(FakeModel(failing(Cause.SERVER_ERROR)))
    doubled = [FIRST_PAUSE_S * 2**power for power in range(9)]
    rest_s = watched.patience_s - sum(doubled) - 2 * LONGEST_PAUSE_S
    assert watched.pauses_s == [*doubled, LONGEST_PAUSE_S, LONGEST_PAUSE_S, rest_s]


@pytest.mark.parametrize(("jitter", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_a_pause_is_jittered_between_half_and_all(
    watched: WatchedClient, jitter: float, share: float
) -> None:
    watched.jitter = jitter
    watched.ask(FakeModel(failing(Cause.CONNECTION), ANSWER))
    assert watched.pauses_s == [FIRST_PAUSE_S * share]


@pytest.mark.parametrize(("wished_s", "pause_s"), [(7.0, 7.0), (0.1, FIRST_PAUSE_S)])
def test_a_pause_is_not_shorter_than_the_provider_asks_for(
    watched: WatchedClient, wished_s: float, pause_s: float
) -> None:
    watched.ask(FakeModel(failing(Cause.RATE_LIMITED, retry_after_s=wished_s), ANSWER))
    assert watched.pauses_s == [pause_s]


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause.retryable])
def test_what_may_pass_is_asked_again_and_given_up_after_its_tries(
    watched: WatchedClient, cause: Cause
) -> None:
    model = FakeModel(failing(cause))
    with pytest.raises(CallFailed) as caught:
        watched.ask(model)
    assert caught.value.cause is cause
    assert [call.cause for call in watched.calls] == [cause] * LIMITS.tries
    assert len(model.asked) == LIMITS.tries
    assert len(watched.pauses_s) == (LIMITS.tries - 1 if cause.outage else 0)


@pytest.mark.parametrize("cause", [Cause.DENIED, Cause.BAD_REQUEST])
def test_what_does_not_pass_is_not_asked_again(watched: WatchedClient, cause: Cause) -> None:
    with pytest.raises(CallFailed):
        watched.ask(FakeModel(failing(cause)))
    assert [call.cause for call in watched.calls] == [cause]
    assert watched.pauses_s == []
    assert watched.budget.cost_spent.dollars == 0


def test_a_model_is_told_what_was_wrong_with_its_last_answer(watched: WatchedClient) -> None:
    def read(text: str) -> str:
        if text != "good":
            raise ValueError(f"{text} is not good")
        return text

    bad, worse, good = (replace(ANSWER, text=text) for text in ("bad", "worse", "good"))
    model = FakeModel(bad, worse, good)
    assert watched.ask(model, read=read) == "good"
    first, second, third = (question.prompt for question in model.asked)
    assert first == "prompt"
    assert second.startswith("prompt\n\n")
    assert "bad is not good" in second
    assert "worse is not good" in third
    assert "bad is" not in third
    assert [call.cause for call in watched.calls] == [Cause.MALFORMED, Cause.MALFORMED, None]
    assert [line["answer"] for line in watched.lines()] == ["bad", "worse", "good"]
    assert watched.budget.cost_spent.dollars == 3 * OF_USED
    assert watched.pauses_s == []


@pytest.mark.parametrize("cause", [Cause.RATE_LIMITED, Cause.TIMEOUT, Cause.REFUSED])
def test_a_model_is_not_told_of_what_it_cannot_help(watched: WatchedClient, cause: Cause) -> None:
    model = FakeModel(failing(cause), ANSWER)
    watched.ask(model)
    assert [question.prompt for question in model.asked] == ["prompt", "prompt"]
