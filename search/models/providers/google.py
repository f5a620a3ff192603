"""Google's Gemini models, through the official SDK google-genai.

https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.models.providers.http import (
    Access,
    cause_of,
    cause_of_error,
    of_the_service,
    response_hooks,
    retry_after_s,
)
from search.models.providers.replies import (
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
    from google.genai import Client
    from google.genai.errors import APIError

FINISHED = ("STOP", "FINISH_REASON_UNSPECIFIED", "")
UNFINISHED = {
    "MAX_TOKENS": Cause.CUT_OFF,
    "CONTINUATION": Cause.CUT_OFF,
    "MALFORMED_RESPONSE": Cause.MALFORMED,
    "MALFORMED_FUNCTION_CALL": Cause.MALFORMED,
    "UNEXPECTED_TOOL_CALL": Cause.MALFORMED,
}
"""The other finish reasons are refusals: SAFETY, RECITATION, PROHIBITED_CONTENT, …"""


class Google:
    """A Gemini model, called through `generateContent`. `base_url`: None for Google itself. `key_variable`:
    the environment variable with the key. `temperature` and `reasoning_effort` (the thinking level: `low`,
    `medium`, `high`, …): None for the model's default.
    """

    def __init__(
        self,
        *,
        model: str,
        price: Price,
        limits: Limits,
        name: str | None = None,
        base_url: str | None = None,
        key_variable: str = "GEMINI_API_KEY",
        temperature: float | None = None,
        reasoning_effort: str | None = None,
    ) -> None:
        self.name = name or f"google/{model}"
        self.price, self.limits = price, limits
        self._model, self._base_url = model, base_url
        self._temperature, self._effort = temperature, reasoning_effort
        url = (
            base_url
            or os.environ.get("GOOGLE_GEMINI_BASE_URL")
            or "https://generativelanguage.googleapis.com"
        )
        self._access = Access(
            module="google.genai", package="google-genai", key_variable=key_variable, url=url
        )
        self._client: Client | None = None
        self._transport: Any = None

    def refusal(self) -> str | None:
        """See `LLM`."""
        return self._access.refusal(self.name)

    def begin(self, folder: Path) -> None:
        """Does nothing; part of the protocol."""

    async def complete(self, question: Question) -> Answer:
        """See `LLM`."""
        import httpx2
        from google.genai.errors import APIError

        client, config = self._connected(), self._config(question)
        try:
            reply: Any = await client.aio.models.generate_content(
                model=self._model, contents=question.prompt, config=config
            )
        except httpx2.TimeoutException as error:
            # `from None`, here and below: the SDK's error may contain the key.
            cause = cause_of_error(error, Cause.TIMEOUT)
            raise self._access.failed(cause, f"no response for {self.limits.timeout_s:g} s") from None
        except httpx2.RequestError as error:
            cause = cause_of_error(error, Cause.CONNECTION)
            raise self._access.failed(cause, error, outage=True) from None
        except APIError as error:
            raise self._failed(error) from None
        except (ValueError, RecursionError) as error:  # the body of an error, which the SDK parses
            raise self._access.failed(Cause.SERVER_ERROR, error) from None
        return answer_of(reply.sdk_http_response.body or "", self._access, self._read, _usage)

    async def close(self) -> None:
        """See `LLM`."""
        if self._client is not None:
            await self._client.aio.aclose()
            await self._transport.aclose()
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        import httpx2
        from google.genai import Client, types

        if self._client is None:
            # A separate transport: with another HTTP library installed, the SDK would raise that library's
            # errors, and retry by itself.
            self._transport = httpx2.AsyncClient(event_hooks=response_hooks())
            self._client = Client(
                vertexai=False,
                api_key=self._access.key or "none",  # the SDK insists on one
                http_options=types.HttpOptions(
                    base_url=self._base_url,
                    timeout=round(self.limits.timeout_s * 1000),
                    httpx_async_client=self._transport,
                    retry_options=types.HttpRetryOptions(attempts=1),  # the model client retries
                ),
            )
        return self._client

    def _config(self, question: Question) -> Any:
        from google.genai import types

        config = types.GenerateContentConfig(
            system_instruction=question.system,
            temperature=self._temperature,
            max_output_tokens=self.limits.output_tokens,
            automatic_continuation=False,  # it would make calls that are not reserved
            should_return_http_response=True,  # as it came: the SDK fails on a body that it does not expect
        )
        if question.schema:
            config.response_mime_type = "application/json"
            config.response_json_schema = dict(question.schema)
        if self._effort:
            config.thinking_config = types.ThinkingConfig(thinking_level=types.ThinkingLevel(self._effort))
        return config

    def _read(self, reply: Mapping[str, Any]) -> Reading:
        if reason := word_of(within(reply.get("promptFeedback"), "blockReason")):
            detail = f"the prompt was blocked: {reason}"
            return Reading(text="", cause=Cause.REFUSED, detail=detail)
        candidates = list_of(reply.get("candidates"), "candidates")
        if not candidates:
            if error := reported_error(reply):
                raise error
            return Reading(text="", detail="no candidate")
        candidate = object_of(candidates[0], "the first candidate")
        content = object_of(candidate.get("content") or {}, "content")
        parts = [object_of(part, "a part of the content") for part in list_of(content.get("parts"), "parts")]
        text = "".join(text_of(part.get("text"), "text") for part in parts if not part.get("thought"))
        finish = word_of(candidate.get("finishReason"))
        if finish in FINISHED:
            return Reading(text=text, detail=f"finish reason: {finish or 'none'}")
        cause = UNFINISHED.get(finish, Cause.REFUSED)
        detail = f"longer than {self.limits.output_tokens} tokens" if finish == "MAX_TOKENS" else finish
        return Reading(text=text, cause=cause, detail=word_of(candidate.get("finishMessage")) or detail)

    def _failed(self, error: APIError) -> CallFailed:
        cause = cause_of(error.code)
        details = _details(error)
        if any(detail.get("reason") == "API_KEY_INVALID" for detail in details):  # comes as a 400
            cause = Cause.DENIED
        after_s = retry_after_s(getattr(error.response, "headers", {}).get("retry-after"))
        if after_s is None:
            delays = [str(detail["retryDelay"]) for detail in details if "retryDelay" in detail]
            after_s = retry_after_s(delays[0].removesuffix("s")) if delays else None
        outage = of_the_service(error.code)
        said = error.message or error.status
        return self._access.failed(cause, said, retry_after_s=after_s, outage=outage)


def _usage(reply: Mapping[str, Any]) -> Usage | None:
    reported = reply.get("usageMetadata")  # in which counts of 0 are left out
    return usage_from(
        reported,
        required=("promptTokenCount",),
        optional=("candidatesTokenCount", "thoughtsTokenCount"),
        cached=within(reported, "cachedContentTokenCount"),
    )


def _details(error: APIError) -> list[dict[str, Any]]:
    """The entries of `error.details` (google.rpc.Status). A gateway may have put anything there."""
    body = error.details.get("error") if isinstance(error.details, dict) else None
    details = body.get("details") if isinstance(body, dict) else None
    return [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
