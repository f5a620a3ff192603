"""Network and socket access of real confined processes that act like a hostile kernel."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.evaluators.conftest import LEVELS
from tests.evaluators.isolation.confined import REFUSED, attempt, confined, needs


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_nothing_can_be_connected_to(scratch: Path, outside: Path, isolate: bool) -> None:
    """Our servers would answer over TCP, UDP, and Unix sockets by path and by abstract name."""
    needs("seccomp")
    name = f"\0ideatree-test-{os.getpid()}"
    kinds: dict[str, tuple[int, int, Any]] = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "stream path": (socket.AF_UNIX, socket.SOCK_STREAM, str(outside / "stream")),
        "datagram path": (socket.AF_UNIX, socket.SOCK_DGRAM, str(outside / "datagram")),
        "stream name": (socket.AF_UNIX, socket.SOCK_STREAM, name),
        "datagram name": (socket.AF_UNIX, socket.SOCK_DGRAM, name),
    }
    with contextlib.ExitStack() as stack:
        servers = {}
        for each, (family, kind, address) in kinds.items():
            server = stack.enter_context(socket.socket(family, kind))
            server.bind(address)
            if kind == socket.SOCK_STREAM:
                server.listen()
            servers[each] = server
        addresses = {each: server.getsockname() for each, server in servers.items()}

        def reach(each: str) -> None:
            family, kind, _ = kinds[each]
            with socket.socket(family, kind) as client:
                if kind == socket.SOCK_STREAM:
                    client.settimeout(5)
                    client.connect(addresses[each])
                else:
                    client.sendto(b"leak", addresses[each])

        def pair(each: str) -> None:
            one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            one.sendto(b"leak", addresses[each])

        def body() -> dict[str, str]:
            found = {each: attempt(lambda each=each: reach(each)) for each in kinds}  # type: ignore[misc]
            found["pair"] = attempt(lambda: pair("datagram path"))
            return found

        for each in kinds:
            assert attempt(lambda each=each: reach(each)) == "done", "the server is none"  # type: ignore[misc]
        readable, _, _ = select.select(list(servers.values()), [], [], 0)
        for server in readable:
            server.recv(10) if server.type == socket.SOCK_DGRAM else server.accept()[0].close()
        found, _ = confined(body, scratch, isolate=isolate)
        heard = select.select(list(servers.values()), [], [], 0.1)[0]
    assert {each: word for each, word in found.items() if word not in REFUSED} == {}
    assert heard == []


SOCKET = {"x86_64": 41, "aarch64": 198}.get(platform.machine())


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_no_socket_of_another_family_can_be_created(scratch: Path, isolate: bool) -> None:
    needs("seccomp")
    if SOCKET is None:
        pytest.skip(f"the number of `socket` on {platform.machine()} is not known here")
    families = [*range(46), *(family + 2**32 for family in (socket.AF_INET, socket.AF_INET6))]

    def body() -> list[int]:
        libc = ctypes.CDLL(None, use_errno=True)
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)
        return [
            family
            for family in families
            for kind in kinds
            if libc.syscall(ctypes.c_long(SOCKET or 0), ctypes.c_long(family), ctypes.c_long(kind), 0) >= 0
        ]

    found, _ = confined(body, scratch, isolate=isolate)
    assert found == [socket.AF_UNIX]


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_a_socket_pair_can_be_created(scratch: Path, isolate: bool) -> None:
    def body() -> str:
        one, other = socket.socketpair()
        one.send(b"hello")
        return other.recv(5).decode()

    assert confined(body, scratch, isolate=isolate)[0] == "hello"
