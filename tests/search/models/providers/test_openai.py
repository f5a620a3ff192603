from __future__ import annotations

import asyncio
import json
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from typing import Any

import pytest

from search.models.providers.openai import OpenAI
from search.records.model_calls import Answer, CallFailed, Cause, Limits, Price, Purpose, Question, Usage
from tests.search.models.providers.servers import OPENAI, RESPONSES, Asked, ModelServer, Reply, Script

KEY = "sk-test-0123456789"
SCHEMA = {
    "type": "object",
    "properties": {"ideas": {"type": "array", "items": {"type": "string"}}},
    "required": ["ideas"],
    "additionalProperties": False,
}
QUESTION = Question(purpose=Purpose.IDEAS, system="Be brief.", prompt="Ideas, please.", schema=SCHEMA)
PRICE = Price(input=2.0, output=10.0, cached_input=0.1)
LIMITS = Limits(output_tokens=500, timeout_s=5.0)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def always(reply: Reply) -> Script:
    return lambda asked, before: reply


def model(server: ModelServer, **more: Any) -> OpenAI:
    return OpenAI(**{"model": "m-1", "price": PRICE, "limits": LIMITS, "base_url": server.base_url, **more})


def ask(llm: OpenAI, question: Question = QUESTION) -> Answer:
    async def once() -> Answer:
        try:
            return await llm.complete(question)
        finally:
            await llm.close()

    return asyncio.run(once())


def asked(question: Question = QUESTION, **more: Any) -> Asked:
    with ModelServer(OPENAI, always(Reply(text="{}"))) as server:
        ask(model(server, **more), question)
    (one,) = server.asked
    return one


def failure(reply: Reply, question: Question = QUESTION, **more: Any) -> CallFailed:
    """Of a call that goes wrong, which the SDK may not have repeated."""
    with ModelServer(OPENAI, always(reply)) as server, pytest.raises(CallFailed) as caught:
        ask(model(server, **more), question)
    assert len(server.asked) == 1
    return caught.value


def test_the_request_has_what_the_question_has() -> None:
    one = asked(temperature=0.7, reasoning_effort="high")
    assert one.headers["authorization"] == f"Bearer {KEY}"
    assert (one.model, one.system, one.prompt) == ("m-1", "Be brief.", "Ideas, please.")
    assert one.body["temperature"] == 0.7
    assert one.body["reasoning_effort"] == "high"
    assert one.body["max_completion_tokens"] == 500
    schema = {"name": "answer", "schema": SCHEMA, "strict": True}
    assert one.body["response_format"] == {"type": "json_schema", "json_schema": schema}


def test_what_is_not_set_is_not_sent() -> None:
    one = asked(replace(QUESTION, schema=None))
    assert set(one.body) == {"model", "messages", "max_completion_tokens"}


@pytest.mark.parametrize(("structured", "format"), [("json_object", {"type": "json_object"}), ("none", None)])
def test_a_schema_that_cannot_be_enforced_is_in_the_prompt(structured: str, format: object) -> None:
    one = asked(structured=structured, output_limit_key="max_tokens")
    assert one.body.get("response_format") == format
    assert one.prompt.startswith("Ideas, please.\n\n")
    assert json.dumps(SCHEMA) in one.prompt
    assert one.body["max_tokens"] == 500
    assert "max_completion_tokens" not in one.body
    # The reservation is made before: what is added may not pass it.
    assert len((one.system + one.prompt).encode()) <= QUESTION.most_tokens(LIMITS).input_tokens


def test_further_fields_are_sent_as_they_are() -> None:
    extra = {"prompt_cache_options": {"mode": "explicit"}, "top_k": 20}
    assert asked(extra_body=extra).body.items() >= extra.items()


def test_the_name_is_the_providers_and_the_models() -> None:
    with ModelServer(OPENAI, always(Reply())) as server:
        assert model(server).name == "openai/m-1"
        assert model(server, name="local/qwen").name == "local/qwen"


def test_an_unknown_way_of_structuring_is_refused() -> None:
    with pytest.raises(ValueError, match="structured is yaml; it must be"):
        OpenAI(model="m", price=PRICE, limits=LIMITS, structured="yaml")  # type: ignore[arg-type]


def test_usage_and_dollars_are_as_reported() -> None:
    usage = Usage(input_tokens=12_345, cached_tokens=10_240, output_tokens=6_789)
    with ModelServer(OPENAI, always(Reply(text="hello", usage=usage, thought_tokens=6_000))) as server:
        answer = ask(model(server))
    assert answer == Answer(text="hello", usage=usage)
    # 2105 × 2 $ + 10240 × 0.1 $ + 6789 × 10 $ a million
    assert answer.usage is not None
    assert PRICE.dollars(answer.usage) == Decimal("0.073124")


def test_without_usage_none_is_reported() -> None:
    with ModelServer(OPENAI, always(Reply(text="hello", usage=None))) as server:
        answer = ask(model(server))
    assert answer.usage is None


def error(status: int, code: str | None = None, **headers: str) -> Reply:
    body = {"error": {"message": f"no: {KEY} is bad", "type": "x", "code": code}}
    return Reply(status=status, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (error(429), Cause.RATE_LIMITED),
        (error(429, "insufficient_quota"), Cause.DENIED),
        (error(500), Cause.SERVER_ERROR),
        (error(502), Cause.SERVER_ERROR),
        (error(529), Cause.SERVER_ERROR),
        (error(408), Cause.SERVER_ERROR),
        (error(401), Cause.DENIED),
        (error(402), Cause.DENIED),
        (error(403), Cause.DENIED),
        (error(400), Cause.BAD_REQUEST),
        (error(404, "model_not_found"), Cause.BAD_REQUEST),
        (error(422), Cause.BAD_REQUEST),
        (Reply(status=503, body=f"<html>{KEY}\n\n{'x' * 5000}</html>"), Cause.SERVER_ERROR),
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


def test_the_key_is_taken_out_where_it_stood() -> None:
    assert "no: *** is bad" in failure(error(401)).detail


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_passed_on(status: int) -> None:
    assert failure(error(status, retry_after="7")).retry_after_s == 7.0
    assert failure(error(status, retry_after="0.5")).retry_after_s == 0.5
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert failure(error(status, retry_after=date)).retry_after_s == pytest.approx(30, abs=2)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=30), usegmt=True)
    assert failure(error(status, retry_after=past)).retry_after_s == 0.0
    assert failure(error(status, retry_after="soon")).retry_after_s is None
    assert failure(error(status, retry_after="nan")).retry_after_s is None


@pytest.mark.parametrize("hang_up", ["before", "within", "between chunks"])
def test_a_lost_connection(hang_up: Any) -> None:
    failed = failure(Reply(text="hello" * 100, hang_up=hang_up))
    assert failed.cause is Cause.CONNECTION
    assert failed.usage is None
    assert failed.detail


def test_nobody_there() -> None:
    with ModelServer(OPENAI, always(Reply())) as server:
        llm = model(server)
    with pytest.raises(CallFailed) as caught:
        ask(llm)
    assert caught.value.cause is Cause.UNREACHABLE


def test_a_slow_answer() -> None:
    failed = failure(Reply(text="late", delay_s=5.0), limits=replace(LIMITS, timeout_s=0.1))
    assert failed.cause is Cause.TIMEOUT
    assert failed.detail.startswith("http://127.0.0.1:")
    assert failed.detail.endswith(": no response for 0.1 s")


@pytest.mark.slow
def test_refusals() -> None:
    said = failure(Reply(refusal="I cannot help with that."))
    assert (said.cause, said.detail) == (Cause.REFUSED, "I cannot help with that.")
    assert said.usage == Usage(input_tokens=100, output_tokens=20)
    filtered = failure(Reply(text="half", finish="content_filter"))
    assert (filtered.cause, filtered.text) == (Cause.REFUSED, "half")


def test_a_cut_off_answer_has_its_text_and_usage() -> None:
    failed = failure(Reply(text='{"ideas": ["a', finish="length"))
    assert (failed.cause, failed.text) == (Cause.CUT_OFF, '{"ideas": ["a')
    assert failed.detail == "longer than 500 tokens"
    assert failed.usage == Usage(input_tokens=100, output_tokens=20)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_has_its_usage(text: str) -> None:
    failed = failure(Reply(text=text))
    assert failed.cause is Cause.EMPTY
    assert failed.usage == Usage(input_tokens=100, output_tokens=20)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body='{"choices": ['),
        Reply(body="<html>hello</html>", headers={"Content-Type": "text/html"}),
        Reply(body={"error": {"message": f"overloaded, {KEY}"}}),
        Reply(body={"choices": []}),
        Reply(body=[]),
    ],
)
def test_a_success_that_is_no_completion_may_have_been_charged_for(reply: Reply) -> None:
    failed = failure(reply)
    assert failed.cause is Cause.MALFORMED
    assert failed.usage is None
    assert failed.cause.may_be_charged
    assert failed.detail.startswith("not a completion")
    assert KEY not in str(failed)


@pytest.mark.slow
def test_calls_at_once_share_one_client() -> None:
    everyone = threading.Barrier(64)

    def script(asked: Asked, before: int) -> Reply:
        everyone.wait(timeout=4)
        return Reply(text="x")

    with ModelServer(OPENAI, script) as server:
        llm = model(server)

        async def many() -> list[Answer]:
            try:
                return await asyncio.gather(*(llm.complete(QUESTION) for _ in range(64)))
            finally:
                await llm.close()

        assert len(asyncio.run(many())) == 64
    assert server.most_at_once == 64


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = OpenAI(model="m-1", price=PRICE, limits=LIMITS)
    monkeypatch.delenv("OPENAI_API_KEY")
    assert llm.refusal() == "openai/m-1 needs a key: set the environment variable OPENAI_API_KEY"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert llm.refusal() is None
    monkeypatch.setitem(sys.modules, "openai", None)
    assert llm.refusal() == "openai/m-1 needs the package openai: pip install openai"


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with ModelServer(OPENAI, always(Reply(text="hi"))) as server:
        llm = model(server, key_variable="")
        assert llm.refusal() is None
        assert ask(llm).text == "hi"


# --- the responses API --------------------------------------------------------------------------------


def response(reply: Reply, **more: Any) -> Answer | CallFailed:
    with ModelServer(RESPONSES, always(reply)) as server:
        try:
            return ask(model(server, api="responses", **more))
        except CallFailed as failed:
            return failed


def asked_response(question: Question = QUESTION, **more: Any) -> Asked:
    with ModelServer(RESPONSES, always(Reply(text="{}"))) as server:
        ask(model(server, api="responses", **more), question)
    (one,) = server.asked
    return one


@pytest.mark.slow
def test_a_request_for_a_response_has_what_the_question_has() -> None:
    one = asked_response(reasoning_effort="high", temperature=0.7, output_limit_key="max_tokens")
    assert (one.model, one.system, one.prompt) == ("m-1", "Be brief.", "Ideas, please.")
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
    assert one.body == {
        "model": "m-1",
        "instructions": "Be brief.",
        "input": "Ideas, please.",
        "store": False,
        "max_output_tokens": 500,
        "reasoning": {"effort": "high"},
        "temperature": 0.7,
        "text": {"format": form},
    }
    plain = asked_response(replace(QUESTION, schema=None), extra_body={"top_k": 20})
    assert set(plain.body) == {"model", "instructions", "input", "store", "max_output_tokens", "top_k"}


@pytest.mark.parametrize("structured", ["json_object", "none"])
def test_a_response_without_an_enforced_schema_has_it_in_the_prompt(structured: str) -> None:
    one = asked_response(structured=structured)
    assert one.body.get("text") == {"json_object": {"format": {"type": "json_object"}}}.get(structured)
    assert json.dumps(SCHEMA) in one.prompt


def test_a_response_has_the_text_of_its_message_and_the_usage() -> None:
    usage = Usage(input_tokens=12_345, cached_tokens=10_240, output_tokens=6_789)
    found = response(Reply(text="hello", thought="Hmm.", usage=usage, thought_tokens=6_000))
    assert found == Answer(text="hello", usage=usage)
    assert response(Reply(text="hello", usage=None)) == Answer(text="hello", usage=None)


def part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text}


def test_the_final_message_of_a_response_is_the_answer() -> None:
    output: list[object] = [
        {"type": "message", "phase": "commentary", "content": [part("I will look.")]},
        {"type": "web_search_call", "status": "completed"},
        {"type": "message", "phase": "final_answer", "content": [part("class "), part("M")]},
    ]
    found = response(Reply(body={"status": "completed", "output": output}))
    assert found == Answer(text="class M", usage=None)


@pytest.mark.parametrize(
    ("reply", "cause", "detail"),
    [
        (Reply(text="cl", finish="max_output_tokens"), Cause.CUT_OFF, "longer than 500 tokens"),
        (Reply(text="cl", finish="steered"), Cause.CUT_OFF, "incomplete: steered"),
        (Reply(text="cl", finish="content_filter"), Cause.REFUSED, "content filter"),
        (Reply(refusal="I cannot."), Cause.REFUSED, "I cannot."),
        (Reply(thought="Hmm."), Cause.EMPTY, "status: completed"),
        (
            Reply(body={"status": "queued", "output": []}),
            Cause.MALFORMED,
            "the status of the response is queued",
        ),
        (Reply(body={"status": "completed"}), Cause.MALFORMED, "not a response: it has no output"),
    ],
)
def test_a_response_that_is_no_answer_has_its_cause(reply: Reply, cause: Cause, detail: str) -> None:
    found = response(reply)
    assert isinstance(found, CallFailed)
    assert (found.cause, found.detail, found.outage) == (cause, detail, False)
    assert found.text == reply.text


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("server_error", Cause.SERVER_ERROR),
        ("rate_limit_exceeded", Cause.RATE_LIMITED),
        ("invalid_prompt", Cause.REFUSED),
        (7, Cause.REFUSED),
    ],
)
def test_a_failed_response_has_its_cause(code: object, cause: Cause) -> None:
    body = {"status": "failed", "output": [], "error": {"code": code, "message": f"no: {KEY} is bad"}}
    found = response(Reply(body=body))
    assert isinstance(found, CallFailed)
    assert (found.cause, found.detail) == (cause, "no: *** is bad")


def test_an_unknown_api_is_refused() -> None:
    with pytest.raises(ValueError, match="api is assistants; it must be chat or responses"):
        OpenAI(model="m", price=PRICE, limits=LIMITS, api="assistants")  # type: ignore[arg-type]
