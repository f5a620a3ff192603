"""What the HTTP providers share: a key from the environment, and failures with a cause."""

from __future__ import annotations

import importlib
import math
import os
import time
from email.utils import parsedate_to_datetime

from search.models.providers.address import checked_url, way_to
from search.records.model_calls import CallFailed, Cause

LONGEST_DETAIL = 500
"""Characters; a gateway's error may be a whole page."""
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

    def failed(self, cause: Cause, said: object, *, retry_after_s: float | None = None) -> CallFailed:
        """A failure with the provider's message: in one line, shortened, and without the key."""
        detail = " ".join(
            (f"{type(said).__name__}: {said}" if isinstance(said, Exception) else str(said)).split()
        )
        if self.key:
            detail = detail.replace(self.key, "***")
        if cause in OF_THE_NETWORK:
            detail = f"{way_to(self._url)}: {detail}"
        return CallFailed(cause, detail[:LONGEST_DETAIL], retry_after_s=retry_after_s)


def lost_or_unreachable(error: BaseException | None, otherwise: Cause) -> Cause:
    """UNREACHABLE for an error of httpx, or a similar library, in which no connection was made: nothing was
    sent, so nothing is charged."""
    return Cause.UNREACHABLE if type(error).__name__ in ("ConnectError", "ConnectTimeout") else otherwise


def cause_of(status: int) -> Cause:
    """The cause of a failed call, given its HTTP status."""
    if status == 429:
        return Cause.RATE_LIMITED
    if status in (401, 402, 403):  # 402: the account is empty
        return Cause.DENIED
    if status in (408, 409) or status >= 500:
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
        except ValueError:
            return None
    return max(0.0, pause_s) if math.isfinite(pause_s) else None
