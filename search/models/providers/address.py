"""Where a provider's server is: its URL, and the proxy on the way to it."""

from __future__ import annotations

import urllib.request
from urllib.parse import SplitResult, urlsplit


def checked_url(url: str, key: str = "base_url") -> str:
    """The URL. Raises ValueError if no server can be reached by it; `key` names its setting."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        fits = False
    if fits and url.isprintable() and " " not in url:
        return url
    host = url.rpartition("//")[2].strip() or "host:8000/v1"
    raise ValueError(f"{key} is {url!r}; it must be the URL of a server, such as http://{host}")


def way_to(url: str) -> str:
    """The URL and the proxy of the environment that calls go through, without passwords."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return _public(parts)
    through = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    return f"{_public(parts)} through the proxy {_public(through)}"


def _public(parts: SplitResult) -> str:
    """A URL without its user, password and query."""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
