"""Lets requests through to a reward server's application: those with a known key, whose body is small and
comes in time."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = ("/health", "/ready")
"""Paths that need no key."""
NOBODY = "anonymous"
DISCARDING_S = 2.0


class Guard:
    """An ASGI middleware. It reads a body before the application sees the request, and puts the client's name
    into the scope's `state`.

    Args:
        app: The application.
        keys: The clients' names by API key; empty: no key is needed.
        most_bytes: The largest body.
        seconds: For how long it waits for a body.
    """

    def __init__(self, app: ASGIApp, keys: Mapping[str, str], most_bytes: int, seconds: float) -> None:
        self._app, self._most_bytes, self._seconds = app, most_bytes, seconds
        self._keys = {key.encode(): name for key, name in keys.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        client = self._client(headers.get(b"authorization", b""))
        if client is None and scope["path"] not in OPEN:
            await _refuse(send, 401, "send a valid API key as `Authorization: Bearer KEY`")
            return
        scope.setdefault("state", {})["client"] = client or NOBODY
        try:
            body = await asyncio.wait_for(self._body(headers, receive), self._seconds)
        except TimeoutError:
            await _refuse(send, 408, f"the body did not arrive within {self._seconds:g} s")
            return
        except ConnectionError:
            return
        if body is None:
            await _discard(receive)
            await _refuse(send, 413, f"the body is larger than {self._most_bytes:,} bytes")
            return
        await self._app(scope, _replayed(body, receive), send)

    def _client(self, authorization: bytes) -> str | None:
        """The name of the client with this header; None for an unknown key."""
        if not self._keys:
            return NOBODY
        kind, _, given = authorization.partition(b" ")
        found = [name for key, name in self._keys.items() if hmac.compare_digest(key, given.strip())]
        return found[0] if found and kind.lower() == b"bearer" else None

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """The body; None if it is too large. Raises ConnectionError if the client went away."""
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most_bytes:
            return None
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most_bytes:
                return None
        return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body first, and then what comes after it."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _discard(receive: Receive) -> None:
    """Reads the rest of a body for a moment, because a client that still sends may not see the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARDING_S):
            while (await receive()).get("more_body", False):
                pass


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"error": why, "retryable": status == 408}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
