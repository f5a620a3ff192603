"""OpenAI, and every server with its chat completions or responses API (vLLM, SGLang, DeepSeek, …), through
the official SDK.

https://platform.openai.com/docs/api-reference/chat
https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from search.models.providers.http import (
    Access,
    cause_of,
    cause_of_error,
    of_the_service,
    response_hooks,
    retry_after_s,
)
from search.models.providers.replies import (
    Malformed,
    Reading,
    answer_of,
    list_of,
    object_of,
    reported_error,
    text_of,
    usage_from,
    within,
    word_of,
)
from search.records.model_calls import Answer, CallFailed, Cause, Limits, Price, Question, Usage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

Api = Literal["chat", "responses"]
Structured = Literal["json_schema", "json_object", "none"]
FAILURES = {"server_error": Cause.SERVER_ERROR, "rate_limit_exceeded": Cause.RATE_LIMITED}
"""Error codes of a failed response; the others are refusals of the prompt."""


class OpenAI:
    """A model behind OpenAI's API.

    Args:
        model: The model's name on the server.
        price: The price of its tokens.
        limits: The limits of its calls.
        name: The name in journals and reports; None for `openai/<model>`.
        base_url: None for OpenAI itself.
        key_variable: The environment variable with the key; "" if none is needed.
        api: `chat` for chat completions, which most servers have, or `responses`, which OpenAI recommends for
            its reasoning models.
        temperature: None for the server's default.
        reasoning_effort: None for the server's default.
        structured: How the server makes an answer follow a schema: `json_schema` (enforces it), `json_object`
            (enforces JSON; the prompt states the schema) or `none` (only the prompt states it).
        output_limit_key: The field of a chat request for the limit, `max_tokens` for older servers.
        extra_body: More fields of the request.

    Raises:
        ValueError: If `api` or `structured` is unknown.
    """

    def __init__(
        self,
        *,
        model: str,
        price: Price,
        limits: Limits,
        name: str | None = None,
        base_url: str | None = None,
        key_variable: str = "OPENAI_API_KEY",
        api: Api = "chat",
        temperature: float | None = None,
        reasoning_effort: str | None = None,
        structured: Structured = "json_schema",
        output_limit_key: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if structured not in get_args(Structured):
            raise ValueError(f"structured is {structured}; it must be json_schema, json_object or none")
        if api not in get_args(Api):
            raise ValueError(f"api is {api}; it must be chat or responses")
        self.name = name or f"openai/{model}"
        self.price, self.limits = price, limits
        self._model, self._base_url, self._api, self._structured = model, base_url, api, structured
        url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        self._access = Access(module="openai", package="openai", key_variable=key_variable, url=url)
        effort: object = reasoning_effort
        if api == "responses" and reasoning_effort is not None:
            effort = {"effort": reasoning_effort}
        options = {
            "temperature": temperature,
            "reasoning_effort" if api == "chat" else "reasoning": effort,
            "extra_body": extra_body,
            output_limit_key if api == "chat" else "max_output_tokens": limits.output_tokens,
        }
        self._options = {key: value for key, value in options.items() if value is not None}
        self._client: AsyncOpenAI | None = None

    def refusal(self) -> str | None:
        """See `LLM`."""
        return self._access.refusal(self.name)

    def begin(self, folder: Path) -> None:
        """Does nothing; part of the protocol."""

    async def complete(self, question: Question) -> Answer:
        """See `LLM`."""
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        request = self._request(question)
        try:
            # The SDK would make anything of a body that comes with status 200, so it is read here.
            if self._api == "chat":
                reply: Any = await self._connected().chat.completions.with_raw_response.create(**request)
            else:
                reply = await self._connected().responses.with_raw_response.create(**request)
        except APITimeoutError as error:
            # `from None`, here and below: the SDK's error may contain the key.
            cause = cause_of_error(error.__cause__, Cause.TIMEOUT)
            raise self._access.failed(cause, f"no response for {self.limits.timeout_s:g} s") from None
        except APIConnectionError as error:
            cause = cause_of_error(error.__cause__, Cause.CONNECTION)
            raise self._access.failed(cause, error.__cause__ or error, outage=True) from None
        except APIStatusError as error:
            raise self._failed(error) from None
        except APIError as error:
            raise self._access.failed(Cause.SERVER_ERROR, error) from None
        if self._api == "chat":
            return answer_of(reply.content, self._access, self._read_chat, _chat_usage)
        return answer_of(reply.content, self._access, self._read_response, _response_usage)

    async def close(self) -> None:
        """See `LLM`."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _connected(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        if self._client is None:
            self._client = AsyncOpenAI(
                api_key=self._access.key or "none",  # the SDK insists on one
                base_url=self._base_url,
                timeout=self.limits.timeout_s,
                max_retries=0,  # the model client retries
                http_client=DefaultAsyncHttpxClient(event_hooks=response_hooks()),
            )
        return self._client

    def _request(self, question: Question) -> dict[str, Any]:
        prompt, system, form = question.prompt, question.system, None
        if question.schema and self._structured == "json_schema":
            form = {"name": "answer", "schema": dict(question.schema), "strict": True}
        elif question.schema:
            prompt += f"\n\nAnswer only with JSON that follows this schema:\n{json.dumps(question.schema)}"
        is_json = bool(question.schema) and self._structured == "json_object"
        request = {"model": self._model, **self._options}
        if self._api == "chat":
            if form:
                request["response_format"] = {"type": "json_schema", "json_schema": form}
            elif is_json:
                request["response_format"] = {"type": "json_object"}
            messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
            return {**request, "messages": messages}
        if form:
            request["text"] = {"format": {"type": "json_schema", **form}}
        elif is_json:
            request["text"] = {"format": {"type": "json_object"}}
        return {**request, "instructions": system, "input": prompt, "store": False}

    def _read_chat(self, reply: Mapping[str, Any]) -> Reading:
        choices = list_of(reply.get("choices"), "choices")
        if not choices:
            raise reported_error(reply) or Malformed("not a completion: it has no choice")
        choice = object_of(choices[0], "the first choice")
        message, finish = object_of(choice.get("message"), "message"), word_of(choice.get("finish_reason"))
        text, refusal = text_of(message.get("content"), "content"), word_of(message.get("refusal"))
        if refusal or finish == "content_filter":
            return Reading(text=text, cause=Cause.REFUSED, detail=refusal or "content filter")
        if finish == "length":
            return self._cut_off(text)
        return Reading(text=text, detail=f"finish reason: {finish or 'none'}")

    def _read_response(self, reply: Mapping[str, Any]) -> Reading:
        """Reads a reply of the responses API. Its output has reasoning and messages, and of some models
        comments before the final answer."""
        status, error = word_of(reply.get("status")), reply.get("error")
        if status == "failed" and isinstance(error, dict):
            cause = FAILURES.get(word_of(error.get("code")), Cause.REFUSED)
            detail = word_of(error.get("message")) or word_of(error.get("code"))
            return Reading(text="", cause=cause, detail=detail)
        if "output" not in reply:
            raise reported_error(reply) or Malformed("not a response: it has no output")
        items = [object_of(item, "an item of the output") for item in list_of(reply["output"], "output")]
        messages = [each for each in items if each.get("type") == "message"]
        contents = [each.get("content") for each in messages if each.get("phase") != "commentary"]
        listed = [part for content in contents for part in list_of(content, "content")]
        parts = [object_of(part, "a part of the message") for part in listed]
        texts = [each.get("text") for each in parts if each.get("type") == "output_text"]
        text = "".join(text_of(each, "text") for each in texts)
        refusal = "".join(word_of(each.get("refusal")) for each in parts)
        why = word_of(within(reply.get("incomplete_details"), "reason"))
        if refusal or why == "content_filter":
            return Reading(text=text, cause=Cause.REFUSED, detail=refusal or "content filter")
        if status == "incomplete":
            other = Reading(text=text, cause=Cause.CUT_OFF, detail=f"incomplete: {why or 'no reason given'}")
            return self._cut_off(text) if why == "max_output_tokens" else other
        if status not in ("completed", ""):
            raise Malformed(f"the status of the response is {status}")
        return Reading(text=text, detail=f"status: {status or 'none'}")

    def _cut_off(self, text: str) -> Reading:
        detail = f"longer than {self.limits.output_tokens} tokens"
        return Reading(text=text, cause=Cause.CUT_OFF, detail=detail)

    def _failed(self, error: APIStatusError) -> CallFailed:
        cause = cause_of(error.status_code)
        if "insufficient_quota" in (error.code, error.type):  # a 429, but waiting does not help
            cause = Cause.DENIED
        after_s = retry_after_s(error.response.headers.get("retry-after"))
        outage = of_the_service(error.status_code)
        return self._access.failed(cause, error.message, retry_after_s=after_s, outage=outage)


def _chat_usage(reply: Mapping[str, Any]) -> Usage | None:
    reported = reply.get("usage")
    cached = within(within(reported, "prompt_tokens_details"), "cached_tokens")
    return usage_from(reported, required=("prompt_tokens", "completion_tokens"), cached=cached)


def _response_usage(reply: Mapping[str, Any]) -> Usage | None:
    reported = reply.get("usage")
    cached = within(within(reported, "input_tokens_details"), "cached_tokens")
    return usage_from(reported, required=("input_tokens", "output_tokens"), cached=cached)
