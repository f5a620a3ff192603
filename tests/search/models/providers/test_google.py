from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from typing import Any

import pytest

from search.models.providers.google import Google
from search.records.model_calls import Answer, CallFailed, Cause, Limits, Price, Purpose, Question, Usage
from tests.search.models.providers.servers import GEMINI, Asked, ModelServer, Reply, Script

KEY = "AIza-test-0123456789"
SCHEMA = {
    "type": "object",
    "properties": {"ideas": {"type": "array", "items": {"type": "string"}}},
    "required": ["ideas"],
    "additionalProperties": False,
}
QUESTION = Question(purpose=Purpose.IDEAS, system="Be brief.", prompt="Ideas, please.", schema=SCHEMA)
PRICE = Price(input=1.5, output=7.5, cached_input=0.15)
LIMITS = Limits(output_tokens=500, timeout_s=5.0)
USAGE = Usage(input_tokens=100, output_tokens=20)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def always(reply: Reply) -> Script:
    return lambda asked, before: reply


def model(server: ModelServer, **more: Any) -> Google:
    return Google(**{"model": "g-1", "price": PRICE, "limits": LIMITS, "base_url": server.base_url, **more})


def ask(llm: Google, question: Question = QUESTION) -> Answer:
    async def once() -> Answer:
        try:
            return await llm.complete(question)
        finally:
            await llm.close()

    return asyncio.run(once())


def asked(question: Question = QUESTION, **more: Any) -> Asked:
    with ModelServer(GEMINI, always(Reply(text="{}"))) as server:
        ask(model(server, **more), question)
    (one,) = server.asked
    return one


def failure(reply: Reply, **more: Any) -> CallFailed:
    """Of a call that goes wrong, which the SDK may not have repeated."""
    with ModelServer(GEMINI, always(reply)) as server, pytest.raises(CallFailed) as caught:
        ask(model(server, **more))
    assert len(server.asked) == 1
    return caught.value


@pytest.mark.slow
def test_the_request_has_what_the_question_has() -> None:
    one = asked(temperature=0.7, reasoning_effort="high")
    assert one.headers["x-goog-api-key"] == KEY
    assert KEY not in one.path
    assert (one.model, one.system, one.prompt) == ("g-1", "Be brief.", "Ideas, please.")
    assert one.body["generationConfig"] == {
        "temperature": 0.7,
        "maxOutputTokens": 500,
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
        "thinkingConfig": {"thinking_level": "HIGH"},  # as the SDK writes it; both spellings are read
    }


@pytest.mark.slow
def test_what_is_not_set_is_not_sent() -> None:
    one = asked(replace(QUESTION, schema=None))
    assert one.body["generationConfig"] == {"maxOutputTokens": 500}
    assert set(one.body) == {"contents", "systemInstruction", "generationConfig"}


def test_the_name_is_the_providers_and_the_models() -> None:
    with ModelServer(GEMINI, always(Reply())) as server:
        assert model(server).name == "google/g-1"
        assert model(server, name="gateway/g").name == "gateway/g"


@pytest.mark.slow
def test_usage_and_dollars_are_as_reported() -> None:
    usage = Usage(input_tokens=12_345, cached_tokens=10_240, output_tokens=6_789)
    with ModelServer(GEMINI, always(Reply(text="hello", usage=usage, thought_tokens=6_000))) as server:
        answer = ask(model(server))
    assert answer == Answer(text="hello", usage=usage)
    # 2105 × 1.5 $ + 10240 × 0.15 $ + 6789 × 7.5 $ a million
    assert answer.usage is not None
    assert PRICE.dollars(answer.usage) == Decimal("0.055611")


@pytest.mark.slow
def test_without_usage_none_is_reported() -> None:
    with ModelServer(GEMINI, always(Reply(text="hello", usage=None))) as server:
        answer = ask(model(server))
    assert answer.usage is None


@pytest.mark.slow
def test_thoughts_are_no_part_of_the_answer() -> None:
    with ModelServer(GEMINI, always(Reply(thought="Hmm.", text="hello"))) as server:
        assert ask(model(server)).text == "hello"


def error(status: int, *details: dict[str, Any], **headers: str) -> Reply:
    body = {"error": {"code": status, "message": f"no: {KEY} is bad", "status": "X", "details": details}}
    return Reply(status=status, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})


def of_type(name: str, **more: str) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/google.rpc.{name}", **more}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (error(429), Cause.RATE_LIMITED),
        (error(500), Cause.SERVER_ERROR),
        (error(503), Cause.SERVER_ERROR),
        (error(408), Cause.SERVER_ERROR),
        (error(401), Cause.DENIED),
        (error(403), Cause.DENIED),
        (error(400, of_type("ErrorInfo", reason="API_KEY_INVALID")), Cause.DENIED),
        (error(400), Cause.BAD_REQUEST),
        (error(404), Cause.BAD_REQUEST),
        (Reply(status=502, body=f"<html>{KEY}\n\n{'x' * 5000}</html>"), Cause.SERVER_ERROR),
        (Reply(status=500, body={"error": KEY}), Cause.SERVER_ERROR),
        (Reply(status=500, body=[KEY]), Cause.SERVER_ERROR),
        (Reply(status=500, body={"error": {"details": KEY}}), Cause.SERVER_ERROR),
    ],
)
def test_a_status_has_its_cause_and_no_key(reply: Reply, cause: Cause) -> None:
    failed = failure(reply)
    assert failed.cause is cause
    assert failed.usage is None
    assert failed.retry_after_s is None
    assert failed.detail
    assert "\n" not in failed.detail
    assert len(failed.detail) <= 500
    assert failed.__cause__ is None
    assert failed.__suppress_context__
    assert KEY not in f"{failed!r} {failed}"


@pytest.mark.slow
def test_the_key_is_taken_out_where_it_stood() -> None:
    assert "no: *** is bad" in failure(error(401)).detail


@pytest.mark.slow
def test_retry_after_is_passed_on() -> None:
    assert failure(error(429, retry_after="7")).retry_after_s == 7.0
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert failure(error(503, retry_after=date)).retry_after_s == pytest.approx(30, abs=2)
    info = of_type("RetryInfo", retryDelay="13.5s")
    assert failure(error(429, of_type("QuotaFailure"), info)).retry_after_s == 13.5
    assert failure(error(429, of_type("RetryInfo", retryDelay="soon"))).retry_after_s is None


@pytest.mark.slow
@pytest.mark.parametrize("hang_up", ["before", "within", "between chunks"])
def test_a_lost_connection(hang_up: Any) -> None:
    failed = failure(Reply(text="hello" * 100, hang_up=hang_up))
    assert failed.cause is Cause.CONNECTION
    assert failed.usage is None
    assert failed.detail


@pytest.mark.slow
def test_nobody_there() -> None:
    with ModelServer(GEMINI, always(Reply())) as server:
        llm = model(server)
    with pytest.raises(CallFailed) as caught:
        ask(llm)
    assert caught.value.cause is Cause.UNREACHABLE


@pytest.mark.slow
def test_a_slow_answer() -> None:
    failed = failure(Reply(text="late", delay_s=5.0), limits=replace(LIMITS, timeout_s=0.1))
    assert failed.cause is Cause.TIMEOUT
    assert failed.detail.startswith("http://127.0.0.1:")
    assert failed.detail.endswith(": no response for 0.1 s")


@pytest.mark.slow
def test_a_blocked_prompt_is_a_refusal() -> None:
    failed = failure(Reply(refusal="PROHIBITED_CONTENT"))
    assert failed.cause is Cause.REFUSED
    assert failed.detail == "the prompt was blocked: PROHIBITED_CONTENT"
    assert failed.usage == USAGE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("finish", "cause"),
    [
        ("SAFETY", Cause.REFUSED),
        ("RECITATION", Cause.REFUSED),
        ("OTHER", Cause.REFUSED),
        ("MAX_TOKENS", Cause.CUT_OFF),
        ("CONTINUATION", Cause.CUT_OFF),
        ("MALFORMED_RESPONSE", Cause.MALFORMED),
    ],
)
def test_a_finish_has_its_cause_the_text_and_the_usage(finish: str, cause: Cause) -> None:
    failed = failure(Reply(text="half", finish=finish))
    assert (failed.cause, failed.text, failed.usage) == (cause, "half", USAGE)
    assert failed.detail == ("longer than 500 tokens" if finish == "MAX_TOKENS" else finish)


@pytest.mark.slow
def test_an_answer_is_not_continued_by_calls_that_nobody_reserved() -> None:
    candidate = {
        "content": {"role": "model", "parts": [{"text": "half"}]},
        "finishReason": "CONTINUATION",
        "continuationToken": "dA==",
    }
    failed = failure(Reply(body={"candidates": [candidate]}))
    assert (failed.cause, failed.text) == (Cause.CUT_OFF, "half")


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [
        Reply(thought="Hmm."),
        Reply(text=" \n"),
        Reply(body={"usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 20}}),
        Reply(
            body={
                "candidates": [{"finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 20},
            }
        ),
    ],
)
def test_an_empty_answer_has_its_usage(reply: Reply) -> None:
    failed = failure(reply)
    assert (failed.cause, failed.usage) == (Cause.EMPTY, USAGE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [
        Reply(body='{"candidates": ['),
        Reply(body=f"<html>{KEY}</html>", headers={"Content-Type": "text/html"}),
        Reply(body="3"),
    ],
)
def test_a_success_that_is_no_completion_may_have_been_charged_for(reply: Reply) -> None:
    failed = failure(reply)
    assert failed.cause is Cause.MALFORMED
    assert failed.usage is None
    assert failed.cause.may_be_charged
    assert failed.detail.startswith("not a completion")
    assert KEY not in str(failed)


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = Google(model="g-1", price=PRICE, limits=LIMITS)
    monkeypatch.delenv("GEMINI_API_KEY")
    assert llm.refusal() == "google/g-1 needs a key: set the environment variable GEMINI_API_KEY"
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    assert llm.refusal() is None
    monkeypatch.setitem(sys.modules, "google.genai", None)
    assert llm.refusal() == "google/g-1 needs the package google-genai: pip install google-genai"
