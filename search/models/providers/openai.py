"""OpenAI, and every server with its chat completions API (vLLM, SGLang, DeepSeek, …), through the official
SDK.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from search.models.providers.http import Access, cause_of, lost_or_unreachable, retry_after_s
from search.records.model_calls import Answer, CallFailed, Cause, Limits, Price, Question, Usage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI


class OpenAI:
    """A model behind the chat completions API. `base_url`: None for OpenAI itself. `key_variable`: the
    environment variable with the key, "" if none is needed. `structured`: how the server makes an answer
    follow a schema: `json_schema` (enforces it), `json_object` (enforces JSON; the prompt states the schema)
    or `none` (only the prompt states it). `output_limit_key`: the request's field for the limit, `max_tokens`
    for older servers. `extra_body`: more fields of the request. `temperature` and `reasoning_effort`: None
    for the server's default.

    A failure that may be charged for, but has no usage, counts as the most that the question allows, so that
    no budget is exceeded. Raises ValueError if `structured` is unknown.
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
        temperature: float | None = None,
        reasoning_effort: str | None = None,
        structured: Literal["json_schema", "json_object", "none"] = "json_schema",
        output_limit_key: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if structured not in ("json_schema", "json_object", "none"):
            raise ValueError(f"structured is {structured}; it must be json_schema, json_object or none")
        self.name = name or f"openai/{model}"
        self.price, self.limits = price, limits
        self._model, self._base_url, self._structured = model, base_url, structured
        url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        self._access = Access(module="openai", package="openai", key_variable=key_variable, url=url)
        options = {"temperature": temperature, "reasoning_effort": reasoning_effort, "extra_body": extra_body}
        self._options: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        self._options[output_limit_key] = limits.output_tokens
        self._client: AsyncOpenAI | None = None

    def refusal(self) -> str | None:
        """See `LLM`."""
        return self._access.refusal(self.name)

    def begin(self, folder: Path) -> None:
        """Does nothing; part of the protocol."""

    async def complete(self, question: Question) -> Answer:
        """See `LLM`."""
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        try:
            reply: Any = await self._connected().chat.completions.create(**self._request(question))
        except APITimeoutError as error:
            # `from None`, here and below: the SDK's error may contain the key.
            cause = lost_or_unreachable(error.__cause__, Cause.TIMEOUT)
            raise self._access.failed(cause, f"no response for {self.limits.timeout_s:g} s") from None
        except APIConnectionError as error:
            cause = lost_or_unreachable(error.__cause__, Cause.CONNECTION)
            raise self._access.failed(cause, error.__cause__ or error) from None
        except APIStatusError as error:
            raise self._failed(error) from None
        except (APIError, ValueError) as error:
            raise self._unreadable(question, error) from None
        if not getattr(reply, "choices", None):  # the SDK accepts any body that comes with status 200
            raise self._unreadable(question, getattr(reply, "error", None) or reply)
        return self._answer(reply, question)

    async def close(self) -> None:
        """See `LLM`."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _connected(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        if self._client is None:
            self._client = AsyncOpenAI(
                api_key=self._access.key or "none",  # the SDK insists on one
                base_url=self._base_url,
                timeout=self.limits.timeout_s,
                max_retries=0,  # the model client retries
            )
        return self._client

    def _request(self, question: Question) -> dict[str, Any]:
        prompt = question.prompt
        request = {"model": self._model, **self._options}
        if question.schema and self._structured == "json_schema":
            schema = {"name": "answer", "schema": dict(question.schema), "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif question.schema:
            prompt += f"\n\nAnswer only with JSON that follows this schema:\n{json.dumps(question.schema)}"
            if self._structured == "json_object":
                request["response_format"] = {"type": "json_object"}
        messages = [{"role": "system", "content": question.system}, {"role": "user", "content": prompt}]
        return {**request, "messages": messages}

    def _answer(self, reply: Any, question: Question) -> Answer:
        choice = reply.choices[0]
        message, finish = choice.message, choice.finish_reason
        text = message.content or ""
        usage = _usage(reply) or question.most_tokens(self.limits)
        if message.refusal or finish == "content_filter":
            raise CallFailed(Cause.REFUSED, message.refusal or "content filter", usage=usage, text=text)
        if finish == "length":
            detail = f"longer than {self.limits.output_tokens} tokens"
            raise CallFailed(Cause.CUT_OFF, detail, usage=usage, text=text)
        if not text.strip():
            raise CallFailed(Cause.EMPTY, f"finish reason: {finish}", usage=usage)
        return Answer(text=text, usage=_usage(reply))

    def _failed(self, error: APIStatusError) -> CallFailed:
        cause = cause_of(error.status_code)
        if "insufficient_quota" in (error.code, error.type):  # a 429, but waiting does not help
            cause = Cause.DENIED
        after_s = retry_after_s(error.response.headers.get("retry-after"))
        return self._access.failed(cause, error.message, retry_after_s=after_s)

    def _unreadable(self, question: Question, said: object) -> CallFailed:
        """Status 200, so it may be charged for, but no completion."""
        failed = self._access.failed(Cause.SERVER_ERROR, f"not a completion: {said}")
        failed.usage = question.most_tokens(self.limits)
        return failed


def _usage(reply: Any) -> Usage | None:
    reported = getattr(reply, "usage", None)
    if reported is None:
        return None
    details = reported.prompt_tokens_details
    return Usage(
        input_tokens=reported.prompt_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        output_tokens=reported.completion_tokens,
    )
