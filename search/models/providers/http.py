"""What the HTTP providers share: a key from the environment, and failures with a cause."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import Any

from evaluators.base.cause import printable
from search.models.providers.address import checked_url, way_to
from search.records.model_calls import CallFailed, Cause

LONGEST_DETAIL = 500
"""Characters; a gateway's error may be a whole page."""
LONGEST_BODY = 16 * 2**20
"""Bytes of a reply. The longest answers have a hundredth of that."""
OF_THE_NETWORK = (Cause.UNREACHABLE, Cause.CONNECTION, Cause.TIMEOUT)
"""Causes for which the message says where the server was sought."""


class Access:
    """Access to one provider: its SDK's `module`, the `package` to install, the environment variable with the
    key ("" if none is needed), and the server's `url`. Raises ValueError if it is no URL."""

    def __init__(self, *, module: str, package: str, key_variable: str, url: str) -> None:
        self._url = checked_url(url)
        self._module, self._package, self._variable = module, package, key_variable
        self._key = ""

    @property
    def key(self) -> str:
        """The key, read when first needed; "" without one."""
        if self._variable and not self._key:
            self._key = os.environ.get(self._variable, "").strip()
        return self._key

    def refusal(self, name: str) -> str | None:
        """What to install or set before the model `name` can be called; None if nothing is missing."""
        try:
            importlib.import_module(self._module)
        except ImportError:
            return f"{name} needs the package {self._package}: pip install {self._package}"
        if self._variable and not self.key:
            return f"{name} needs a key: set the environment variable {self._variable}"
        return None

    def failed(self, cause: Cause, said: object, **more: Any) -> CallFailed:
        """A failure with the provider's message: in one line, shortened, and without the key. `more` are
        further arguments of `CallFailed`."""
        detail = printable(f"{type(said).__name__}: {said}" if isinstance(said, Exception) else str(said))
        if self.key:
            detail = detail.replace(self.key, "***")
        if cause in OF_THE_NETWORK:
            detail = f"{way_to(self._url)}: {detail}"
        return CallFailed(cause, detail[:LONGEST_DETAIL], **more)


def cause_of_error(error: BaseException | None, otherwise: Cause) -> Cause:
    """The cause of an error of httpx or a similar library. UNREACHABLE: no connection was made, so nothing
    was sent and nothing is charged. MALFORMED: the body is too long, or not encoded as its header says."""
    name = type(error).__name__
    if name in ("ConnectError", "ConnectTimeout"):
        return Cause.UNREACHABLE
    return Cause.MALFORMED if name == "DecodingError" else otherwise


def response_hooks() -> dict[str, list[Callable[[Any], Awaitable[None]]]]:
    """The `event_hooks` of an httpx2 client that limit what a server may send: a body of LONGEST_BODY bytes,
    read as UTF-8, whichever encoding the header names."""
    import httpx2

    class Limited(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            length = 0
            async for chunk in self._stream:
                length += len(chunk)
                if length > LONGEST_BODY:
                    raise httpx2.DecodingError(f"the reply is longer than {LONGEST_BODY} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def limit(response: httpx2.Response) -> None:
        response.stream = Limited(response.stream)
        response.encoding = "utf-8"

    return {"response": [limit]}


def cause_of(status: int) -> Cause:
    """The cause of a failed call, given its HTTP status."""
    if status == 429:
        return Cause.RATE_LIMITED
    if status in (401, 402, 403):  # 402: the account is empty
        return Cause.DENIED
    if status < 300:  # a success, but without an answer
        return Cause.MALFORMED
    if status in (408, 409, 425) or status >= 500:
        return Cause.SERVER_ERROR
    return Cause.BAD_REQUEST


def retry_after_s(header: str | None) -> float | None:
    """Seconds until the time in a Retry-After header, which has seconds or a date (RFC 9110, 10.2.3). None
    without a valid header."""
    if header is None:
        return None
    try:
        pause_s = float(header)
    except ValueError:
        try:
            pause_s = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, pause_s) if math.isfinite(pause_s) else None


def of_the_service(status: int) -> bool | None:
    """Whether a status concerns the service rather than the question, although its cause says otherwise: a
    gateway whose server is down answers with nothing or a redirect, or knows neither path nor model. None if
    the cause decides."""
    return True if status < 400 or status in (404, 405, 410) else None
