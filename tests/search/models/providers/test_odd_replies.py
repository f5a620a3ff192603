"""Whatever comes with status 200 is data: an answer that can be read, or a malformed one that says why."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from search.models.providers import http
from search.models.providers.google import Google
from search.models.providers.openai import OpenAI
from search.records.model_calls import LLM, Answer, CallFailed, Cause, Limits, Price, Purpose, Question, Usage
from tests.search.models.providers.servers import (
    GEMINI,
    OPENAI,
    RESPONSES,
    ModelServer,
    Reply,
    WireFormat,
)

QUESTION = Question(purpose=Purpose.CODE, system="Be brief.", prompt="Code, please.")
LIMITS = Limits(output_tokens=500, timeout_s=5.0)
USAGE = Usage(input_tokens=100, output_tokens=20)
NESTED = "[" * 100_000 + "]" * 100_000
WRONG = (None, "text", 7, 0.5, True, [], {}, [None], [[]], {"a": 1}, [7], ["text"])
"""A value of every JSON type, in place of another."""


@dataclass(frozen=True, kw_only=True)
class Api:
    """How an API is asked, and where its replies have what is read: the text, what it is inside of, and the
    token counts."""

    wire: WireFormat
    model: Callable[[str], LLM]
    text: tuple[str | int, ...]
    usage: str
    counts: tuple[str, str]


def openai(api: str) -> Callable[[str], LLM]:
    def model(base_url: str) -> LLM:
        given: dict[str, Any] = {"model": "m", "price": Price(), "limits": LIMITS, "key_variable": ""}
        return OpenAI(**given, base_url=base_url, api=api)  # type: ignore[arg-type]

    return model


def google(base_url: str) -> LLM:
    return Google(model="m", price=Price(), limits=LIMITS, key_variable="", base_url=base_url)


APIS = {
    "chat": Api(
        wire=OPENAI,
        model=openai("chat"),
        text=("choices", 0, "message", "content"),
        usage="usage",
        counts=("prompt_tokens", "completion_tokens"),
    ),
    "responses": Api(
        wire=RESPONSES,
        model=openai("responses"),
        text=("output", 0, "content", 0, "text"),
        usage="usage",
        counts=("input_tokens", "output_tokens"),
    ),
    "google": Api(
        wire=GEMINI,
        model=google,
        text=("candidates", 0, "content", "parts", 0, "text"),
        usage="usageMetadata",
        counts=("promptTokenCount", "candidatesTokenCount"),
    ),
}


@pytest.fixture(params=list(APIS))
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert APIS[request.param].model("http://127.0.0.1").refusal() is None, "it imports the SDK"
    return APIS[request.param]


def outcomes(api: Api, *replies: Reply) -> list[Answer | CallFailed]:
    """What each reply becomes, in this order."""

    async def ask_all(model: LLM) -> list[Answer | CallFailed]:
        found: list[Answer | CallFailed] = []
        try:
            for _ in replies:
                try:
                    found.append(await model.complete(QUESTION))
                except CallFailed as failed:
                    found.append(failed)
        finally:
            await model.close()
        return found

    with ModelServer(api.wire, lambda asked, before: replies[before]) as server:
        return asyncio.run(ask_all(api.model(server.base_url)))


def good(api: Api, text: str = "hello") -> dict[str, Any]:
    return api.wire.answer(Reply(text=text))


def replaced(api: Api, path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """A good reply with another value at a place; Ellipsis: without the place."""
    reply = copy.deepcopy(good(api))
    at: Any = reply
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return reply


@pytest.mark.slow
def test_any_value_at_any_place_on_the_way_to_the_text_is_a_cause(api: Api) -> None:
    """Nothing that stands where the text or one of its containers is expected gets an exception of another
    kind; only a text is an answer."""
    cases = [
        (path, value)
        for path in (api.text[:length] for length in range(1, len(api.text) + 1))
        for value in (..., *WRONG)
        if path[-1] != 0 or value is not ...
    ]
    found = outcomes(api, *(Reply(body=replaced(api, *case)) for case in cases))
    for (path, value), outcome in zip(cases, found, strict=True):
        if isinstance(outcome, Answer):
            assert (path, value) == (api.text, "text")
        else:
            assert outcome.cause in (Cause.MALFORMED, Cause.EMPTY), (path, value)
            assert outcome.detail
            assert outcome.usage == USAGE, "it was reported"
            assert not outcome.outage, "a model wrote it"


def failures(api: Api, *replies: Reply) -> list[CallFailed]:
    found = outcomes(api, *replies)
    assert all(isinstance(each, CallFailed) for each in found), found
    return [each for each in found if isinstance(each, CallFailed)]


def test_a_text_of_another_type_is_named(api: Api) -> None:
    values = (7, 0.5, True, ["text"], {"type": "text"})
    for failed in failures(api, *(Reply(body=replaced(api, api.text, value)) for value in values)):
        assert failed.cause is Cause.MALFORMED
        assert ", not a text" in failed.detail


NO_OBJECTS: tuple[str | bytes, ...] = (
    *("", " \n", "null", "7", '"hello"', "[]", "{", '{"choices": [', '{"a": 1}{"b": 2}', "1" * 5000),
    *(NESTED, "[" * 900 + "]" * 900),
    f'{{"choices": {NESTED}, "output": {NESTED}, "candidates": {NESTED}}}',
    "<html><body>Service unavailable</body></html>",
    'data: {"choices": [{"delta": {"content": "hello"}}]}\n\ndata: [DONE]\n\n',
    'event: response.completed\ndata: {"type": "response.completed"}\n\n',
    *(b"\xff\xfe\x00\xd8", b"\x00" * 1000),
)


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream; charset=hex"])
def test_a_body_that_is_no_object_is_an_outage(api: Api, content_type: str) -> None:
    replies = [Reply(body=body, headers={"Content-Type": content_type}) for body in NO_OBJECTS]
    for body, failed in zip(NO_OBJECTS, failures(api, *replies), strict=True):
        assert (failed.cause, failed.outage, failed.usage) == (Cause.MALFORMED, True, None), body[:20]
        assert failed.detail.startswith("not a completion: ")


@pytest.mark.slow
def test_an_error_with_status_200_is_an_outage(api: Api) -> None:
    errors = ({"message": "overloaded"}, "overloaded", ["x"], {"code": 502}, {"message": 7}, 7)
    found = failures(api, *(Reply(body={"error": error}) for error in errors))
    assert {(failed.cause, failed.outage) for failed in found} == {(Cause.MALFORMED, True)}
    assert ["overloaded" in failed.detail for failed in found] == [True, True, False, False, False, False]


def test_a_readable_reply_is_read_whatever_its_type(api: Api) -> None:
    body = json.dumps(good(api, "größer"), ensure_ascii=False)
    types = ("text/plain", "text/html; charset=utf-16", "x", "application/json")
    found = outcomes(api, *(Reply(body=body, headers={"Content-Type": each}) for each in types))
    assert found == [Answer(text="größer", usage=USAGE)] * len(types)


def test_a_lone_surrogate_is_replaced(api: Api) -> None:
    (answer,) = outcomes(api, Reply(body=json.dumps(good(api, "a\ud800b\udfff, 😀"))))
    assert answer == Answer(text="a\ufffdb\ufffd, 😀", usage=USAGE)


@pytest.mark.slow
def test_a_usage_that_cannot_be_read_is_none_and_the_answer_counts(api: Api) -> None:
    first, second = api.counts
    bad = [dict.fromkeys(api.counts, value) for value in (0.5, "7", -1, 1e300, True, [7])]
    halves = [{first: 1, second: "2"}, {first: None, second: 2}, {first: "1", second: 2}]
    reported = [..., {}, None, "7", 7, [], [7], True, {"total_tokens": 7}, *bad, *halves]
    found = outcomes(api, *(Reply(body=replaced(api, (api.usage,), each)) for each in reported))
    assert found == [Answer(text="hello", usage=None)] * len(reported)


def test_whole_fractions_are_counts_and_cached_tokens_are_part_of_the_input(api: Api) -> None:
    reported: dict[str, Any] = dict(zip(api.counts, (100.0, 20.0), strict=True))
    details = {"cached_tokens": 1e6}
    reported |= {"prompt_tokens_details": details, "input_tokens_details": details}
    reported |= {"cachedContentTokenCount": 1e6}
    (answer,) = outcomes(api, Reply(body=replaced(api, (api.usage,), reported)))
    usage = Usage(input_tokens=100, cached_tokens=100, output_tokens=20)
    assert answer == Answer(text="hello", usage=usage)


def test_a_body_that_is_too_long_is_not_read_to_its_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LONGEST_BODY", 100_000)
    long = good(api, "x" * 200_000)
    for failed in failures(api, Reply(body=long), Reply(status=500, body="x" * 200_000)):
        assert (failed.cause, failed.outage) == (Cause.MALFORMED, True)
        assert "longer than 100000 bytes" in failed.detail


def test_encodings(api: Api) -> None:
    body = json.dumps(good(api)).encode()
    zipped, wrong = outcomes(
        api,
        Reply(body=gzip.compress(body), headers={"Content-Encoding": "gzip"}),
        Reply(body=body, headers={"Content-Encoding": "gzip"}),
    )
    assert zipped == Answer(text="hello", usage=USAGE)
    assert isinstance(wrong, CallFailed)
    assert (wrong.cause, wrong.outage) == (Cause.MALFORMED, True)


def test_the_body_of_an_error_is_data_too(api: Api) -> None:
    bodies = (NESTED, b"\xff\xd8", "null", "7", "[[]]", '{"error": null}', '{"error": [7]}')
    for failed in failures(api, *(Reply(status=503, body=body) for body in bodies)):
        assert (failed.cause, failed.usage) == (Cause.SERVER_ERROR, None)


def test_no_control_character_of_a_server_reaches_a_terminal(api: Api) -> None:
    bodies = ("\x1b[2J\x00", json.dumps({"error": {"message": "\x1b[2J\u202eno\x00"}}))
    replies = [Reply(status=status, body=body) for status in (200, 503) for body in bodies]
    assert all(str(failed).isprintable() for failed in failures(api, *replies))


def test_statuses(api: Api) -> None:
    """A redirect, or a path or model that is unknown, is an outage if the model has answered before."""
    wanted = {
        204: (Cause.MALFORMED, True),
        404: (Cause.BAD_REQUEST, True),
        405: (Cause.BAD_REQUEST, True),
        400: (Cause.BAD_REQUEST, False),
        425: (Cause.SERVER_ERROR, True),
        599: (Cause.SERVER_ERROR, True),
    }
    found = failures(api, *(Reply(status=each, body="" if each == 204 else "{}") for each in wanted))
    assert {status: (f.cause, f.outage) for status, f in zip(wanted, found, strict=True)} == wanted
