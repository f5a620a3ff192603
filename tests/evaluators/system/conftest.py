"""Fixtures for the channel tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from evaluators.system.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    a, b = Channel.pair()
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def raw() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel and the bare socket of a peer that sends what it likes."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()
