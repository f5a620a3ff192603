"""Serves a reward server's application over HTTP until a signal ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType

import uvicorn

from evaluators.base.usage_error import UsageError
from evaluators.rewards.guard import Guard
from evaluators.rewards.server import RewardServer, application


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """What clients may do.

    Attributes:
        keys: Their names by API key; empty: no key is needed.
        body_bytes: The largest request.
        body_s: Seconds that a request may take to arrive.
        connections: Connections at a time.
        drain_s: Seconds for which the end waits for requests at work.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    body_bytes: int = 4 * 2**20
    body_s: float = 30.0
    connections: int = 1024
    drain_s: int = 600


async def serve_http(
    server: RewardServer,
    start: Callable[[], Awaitable[str]],
    host: str,
    port: int,
    limits: HttpLimits,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Listens at once, and takes requests when `start` has returned.

    Args:
        server: Answers the requests.
        start: Makes the server ready and returns a line that says so.
        host: The address to listen on.
        port: The port; 0 for any free one.
        limits: What clients may do.
        on_line: Called with the line, to which the server's address is added.

    Raises:
        UsageError: It cannot listen there.
        Exception: What `start` raises.
    """
    config = uvicorn.Config(
        Guard(application(server), limits.keys, limits.body_bytes, limits.body_s),
        host=host,
        port=port,
        log_level="critical",
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=limits.drain_s,
        server_header=False,
        lifespan="off",
    )
    http = _Uvicorn(config, server)
    try:
        socket = config.bind_socket()
    except SystemExit as error:
        raise UsageError(f"cannot listen on {host}:{port}; another program may use it") from error
    listening = asyncio.create_task(http.serve(sockets=[socket]))
    starting = asyncio.ensure_future(start())
    try:
        await asyncio.wait([listening, starting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            on_line(f"{starting.result()}, at http://{host}:{socket.getsockname()[1]}")
        await listening
    finally:
        http.should_exit = True
        starting.cancel()
        await listening


class _Uvicorn(uvicorn.Server):
    """Marks the reward server as draining once it is to end."""

    def __init__(self, config: uvicorn.Config, server: RewardServer) -> None:
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second signal ends it at once. Unlike uvicorn's own, it does not end the process by the
        signal."""
        self.force_exit = self._server.draining
        self.should_exit = self._server.draining = True
