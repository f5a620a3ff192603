"""Reads the JSON of a reply. A reply is data: a server or a gateway may have put anything there, and whatever
cannot be read is a malformed answer that says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from search.models.providers.http import Access
from search.records.model_calls import Answer, Cause, Usage, storable

MOST_TOKENS = 10**9
"""A larger count is none."""


class Malformed(ValueError):
    """A reply that does not have the form of the API. `outage`: whether it comes from a service that failed
    rather than from a model."""

    def __init__(self, reason: str, *, outage: bool = False) -> None:
        super().__init__(reason)
        self.outage = outage


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a reply says: the model's text and, if that is no answer, the cause and the provider's words."""

    text: str
    cause: Cause | None = None
    detail: str = ""


def answer_of(
    body: bytes | str,
    access: Access,
    read: Callable[[Mapping[str, Any]], Reading],
    usage_of: Callable[[Mapping[str, Any]], Usage | None],
) -> Answer:
    """The answer in the body of a successful reply, by the two functions of its API: `read`, which raises
    Malformed, and `usage_of`. Raises CallFailed."""
    usage = None
    try:
        reply = _json(body)
        usage = usage_of(reply)
        reading = read(reply)
    except Malformed as error:
        outage = error.outage
        raise access.failed(Cause.MALFORMED, str(error), usage=usage, outage=outage) from None
    if reading.cause is not None:
        raise access.failed(reading.cause, reading.detail, usage=usage, text=reading.text)
    if not reading.text.strip():
        raise access.failed(Cause.EMPTY, reading.detail, usage=usage)
    return Answer(text=reading.text, usage=usage)


def reported_error(reply: Mapping[str, Any]) -> Malformed | None:
    """The failure that a server reports in a reply with status 200; None without one."""
    error = reply.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    if error is None:
        return None
    said = message if isinstance(message, str) else f"of type {_kind(error)}"
    return Malformed(f"not a completion but an error: {said}", outage=True)


def text_of(value: object, name: str) -> str:
    """A text; "" for null. Raises Malformed."""
    if value is not None and not isinstance(value, str):
        raise Malformed(f"{name} is {_kind(value)}, not a text")
    return storable(value or "")


def object_of(value: object, name: str) -> Mapping[str, Any]:
    """An object. Raises Malformed."""
    if not isinstance(value, dict):
        raise Malformed(f"{name} is {_kind(value)}, not an object")
    return value


def list_of(value: object, name: str) -> list[Any]:
    """A list; empty for null. Raises Malformed."""
    if value is not None and not isinstance(value, list):
        raise Malformed(f"{name} is {_kind(value)}, not a list")
    return value or []


def word_of(value: object) -> str:
    """A word such as a finish reason; "" for anything but a text."""
    return value if isinstance(value, str) else ""


def usage_from(
    reported: object, *, required: tuple[str, ...], optional: tuple[str, ...] = (), cached: object
) -> Usage | None:
    """The token counts that a reply reports; None if it does not, or if one of them is no count.

    Args:
        reported: The report.
        required: The keys of the input tokens and, if it is never absent, of the output tokens.
        optional: Keys of further output tokens; 0 if absent.
        cached: The count of cached input tokens.
    """
    if not isinstance(reported, dict):
        return None
    counts = [_count(reported.get(key)) for key in required]
    counts += [_count(reported.get(key) or 0) for key in optional]
    if None in counts:
        return None
    input_tokens, *output_tokens = [count or 0 for count in counts]
    cached_tokens = min(_count(cached) or 0, input_tokens)
    return Usage(input_tokens=input_tokens, cached_tokens=cached_tokens, output_tokens=sum(output_tokens))


def within(value: object, key: str) -> object:
    """The value of a key; None if there is no such object."""
    return value.get(key) if isinstance(value, dict) else None


def _json(body: bytes | str) -> Mapping[str, Any]:
    try:
        reply = json.loads(body)
    except RecursionError:
        raise Malformed("not a completion: JSON nested too deeply", outage=True) from None
    except ValueError:
        start = body[:80] if isinstance(body, str) else body[:80].decode(errors="replace")
        shown = f"it starts with {storable(start)!r}" if start.strip() else "it is empty"
        raise Malformed(f"not a completion: the body is not JSON; {shown}", outage=True) from None
    if not isinstance(reply, dict):
        raise Malformed(f"not a completion: the body is {_kind(reply)}", outage=True)
    return reply


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < MOST_TOKENS and value == int(value) else None


def _kind(value: object) -> str:
    """What a JSON value is, in words."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")
