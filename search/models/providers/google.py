"""Google's Gemini models, through the official SDK google-genai.

https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.models.providers.http import Access, cause_of, lost_or_unreachable, retry_after_s
from search.records.model_calls import Answer, CallFailed, Cause, Limits, Price, Question, Usage

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.errors import APIError

FINISHED = ("STOP", "FINISH_REASON_UNSPECIFIED")
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

    A failure that may be charged for, but has no usage, counts as the most that the question allows, so that
    no budget is exceeded.
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

        try:
            reply: Any = await self._connected().aio.models.generate_content(
                model=self._model, contents=question.prompt, config=self._config(question)
            )
        except httpx2.TimeoutException as error:
            # `from None`, here and below: the SDK's error may contain the key.
            cause = lost_or_unreachable(error, Cause.TIMEOUT)
            raise self._access.failed(cause, f"no response for {self.limits.timeout_s:g} s") from None
        except httpx2.TransportError as error:
            raise self._access.failed(lost_or_unreachable(error, Cause.CONNECTION), error) from None
        except APIError as error:
            raise self._failed(error) from None
        except (ValueError, TypeError) as error:
            # Status 200, so it may be charged for, but the SDK cannot parse it.
            failed = self._access.failed(Cause.SERVER_ERROR, f"not a completion: {error}")
            failed.usage = question.most_tokens(self.limits)
            raise failed from None
        return self._answer(reply, question)

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
            self._transport = httpx2.AsyncClient()
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
        )
        if question.schema:
            config.response_mime_type = "application/json"
            config.response_json_schema = dict(question.schema)
        if self._effort:
            config.thinking_config = types.ThinkingConfig(thinking_level=types.ThinkingLevel(self._effort))
        return config

    def _answer(self, reply: Any, question: Question) -> Answer:
        usage = _usage(reply) or question.most_tokens(self.limits)
        if reply.prompt_feedback and reply.prompt_feedback.block_reason:
            detail = f"the prompt was blocked: {reply.prompt_feedback.block_reason.name}"
            raise CallFailed(Cause.REFUSED, detail, usage=usage)
        if not reply.candidates:
            raise CallFailed(Cause.EMPTY, "no candidate", usage=usage)
        candidate = reply.candidates[0]
        parts = (candidate.content.parts if candidate.content else None) or ()
        text = "".join(part.text for part in parts if part.text and not part.thought)
        finish = candidate.finish_reason.name if candidate.finish_reason else FINISHED[0]
        if finish not in FINISHED:
            cause = UNFINISHED.get(finish, Cause.REFUSED)
            detail = f"longer than {self.limits.output_tokens} tokens" if finish == "MAX_TOKENS" else finish
            raise CallFailed(cause, candidate.finish_message or detail, usage=usage, text=text)
        if not text.strip():
            raise CallFailed(Cause.EMPTY, f"finish reason: {finish}", usage=usage)
        return Answer(text=text, usage=_usage(reply))

    def _failed(self, error: APIError) -> CallFailed:
        cause = cause_of(error.code)
        details = _details(error)
        if any(detail.get("reason") == "API_KEY_INVALID" for detail in details):  # comes as a 400
            cause = Cause.DENIED
        after_s = retry_after_s(getattr(error.response, "headers", {}).get("retry-after"))
        if after_s is None:
            delays = [str(detail["retryDelay"]) for detail in details if "retryDelay" in detail]
            after_s = retry_after_s(delays[0].removesuffix("s")) if delays else None
        return self._access.failed(cause, error.message or error.status, retry_after_s=after_s)


def _usage(reply: Any) -> Usage | None:
    reported = reply.usage_metadata
    if reported is None or reported.prompt_token_count is None:
        return None
    return Usage(
        input_tokens=reported.prompt_token_count,
        cached_tokens=reported.cached_content_token_count or 0,
        output_tokens=(reported.candidates_token_count or 0) + (reported.thoughts_token_count or 0),
    )


def _details(error: APIError) -> list[dict[str, Any]]:
    """The entries of `error.details` (google.rpc.Status). A gateway may have put anything there."""
    body = error.details.get("error") if isinstance(error.details, dict) else None
    details = body.get("details") if isinstance(body, dict) else None
    return [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
