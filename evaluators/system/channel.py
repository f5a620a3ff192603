"""Messages between the evaluator's processes: one line of JSON each over a Unix socket, with file
descriptors.

Never pickle, because one end may be hostile. A peer can lie in a message, but it cannot make the reader run
code, read without end or wait forever.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from typing import Any

Message = dict[str, Any]

MAX_MESSAGE_BYTES = 16 * 2**20
MAX_FDS = 8


class ChannelClosed(Exception):
    """The peer is gone."""


class ChannelTimeout(Exception):
    """The peer sent nothing in time."""


class ProtocolError(Exception):
    """The peer sent something that is not a valid message."""


def printable(value: Any, limit: int = 8000) -> str:
    """Text from a peer's message: at most `limit` characters, without lone surrogates, which no file can
    hold."""
    return str(value)[:limit].encode(errors="replace").decode()


class Channel:
    """One end of a connected pair. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._fds: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two connected ends."""
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(a), cls(b)

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Takes ownership of an inherited descriptor."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The descriptor, for `select` and for passing on."""
        return self._socket.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Sends a message and copies of `fds`. Raises ChannelClosed."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            sent = socket.send_fds(self._socket, [data], list(fds)) if fds else self._socket.send(data)
            if sent < len(data):  # sending no bytes would fail if the peer has read everything and gone
                self._socket.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message. Raises ChannelClosed, ChannelTimeout or ProtocolError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
            self._fill(None if deadline is None else max(0.0, deadline - time.monotonic()))
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not JSON: {line[:80]!r}") from error
        if not isinstance(message, dict):
            raise ProtocolError(f"not an object: {line[:80]!r}")
        return message

    def wait(self, timeout_s: float) -> None:
        """Waits for a message and leaves it unread, for the next owner of the descriptor. Raises
        ChannelClosed or ChannelTimeout."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            raise ChannelTimeout(f"no message within {timeout_s:.3g} s")
        with contextlib.suppress(ConnectionResetError):
            if self._socket.recv(1, socket.MSG_PEEK):
                return
        raise ChannelClosed("the peer has closed the channel")

    def has_message(self) -> bool:
        """Whether `receive` can answer from data that has already been read."""
        return b"\n" in self._buffer

    def take_fds(self, n: int) -> list[int]:
        """The next `n` descriptors that came with the messages received so far. Raises ProtocolError."""
        if len(self._fds) < n:
            raise ProtocolError(f"expected {n} descriptors, received {len(self._fds)}")
        taken, self._fds = self._fds[:n], self._fds[n:]
        return taken

    def close(self) -> None:
        """Closes this end; the peer's next `receive` raises ChannelClosed."""
        self._socket.close()
        self._drop_fds()

    def finish(self, timeout_s: float) -> None:
        """Stops sending, waits until the peer closes its end or for `timeout_s`, and closes."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(OSError, ChannelClosed, ChannelTimeout, ProtocolError):
            self._socket.shutdown(socket.SHUT_WR)
            while True:
                self.receive(max(0.0, deadline - time.monotonic()))
        self.close()

    def _fill(self, timeout_s: float | None) -> None:
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        if not ready:
            raise ChannelTimeout(f"no message within {timeout_s:.3g} s")
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 1 << 20, MAX_FDS)
        except ConnectionResetError as error:
            raise ChannelClosed(str(error)) from error
        self._fds += fds
        if len(self._fds) > MAX_FDS:
            self._drop_fds()
            raise ProtocolError(f"more than {MAX_FDS} unexpected descriptors")
        if not data:
            raise ChannelClosed("the peer has closed the channel")
        self._buffer += data

    def _drop_fds(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
