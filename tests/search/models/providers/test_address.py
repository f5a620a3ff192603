"""URLs of servers: refused at the start if they are none, and named, with the proxy, when a call fails."""

from __future__ import annotations

import pytest

from search.models.providers.address import checked_url, way_to
from search.models.providers.http import Access
from search.records.model_calls import Cause


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000/v1", "127.0.0.1:8000", "//host/v1", "http://", "ftp://host", "http:/host"),
        *("http://host:port", "http://host:99999", "http://my host/v1", "http://host/v1\n", "", "host.com"),
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"^base_url is '.*'; it must be the URL of a server, such as http://"
    ):
        checked_url(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v1", "https://api.openai.com/v1", "http://[::1]:30000/v1"]
)
def test_a_url(url: str) -> None:
    assert checked_url(url) == url


@pytest.mark.parametrize(
    ("proxies", "way"),
    [
        ({}, "https://host/v1"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://host/v1 through the proxy http://proxy:3128"),
        ({"https_proxy": "user:secret@proxy:3128"}, "https://host/v1 through the proxy http://proxy:3128"),
        ({"all_proxy": "socks5://proxy:1080"}, "https://host/v1 through the proxy socks5://proxy:1080"),
        ({"HTTP_PROXY": "http://proxy:3128"}, "https://host/v1"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "host"}, "https://host/v1"),
    ],
)
def test_the_way_to_a_server(proxies: dict[str, str], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    assert way_to("https://user:secret@host/v1?key=secret") == way
    access = Access(module="json", package="json", key_variable="", url="https://user:secret@host/v1")
    assert str(access.failed(Cause.UNREACHABLE, "refused")).endswith(f"{way}: refused")
    assert "host" not in str(access.failed(Cause.SERVER_ERROR, "503"))
