"""Malformed or malicious data on the channel is refused, and no code in it runs."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.system import channel as channel_module
from evaluators.system.channel import Channel, ChannelClosed, ProtocolError


def test_a_line_without_end_is_refused(
    raw: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_MESSAGE_BYTES", 100_000)
    channel, peer = raw

    def flood() -> None:
        try:
            while True:
                peer.send(b"x" * 65536)
        except OSError:
            pass

    thread = threading.Thread(target=flood)
    thread.start()
    with pytest.raises(ProtocolError, match="more than 100000 bytes"):
        channel.receive(10)
    channel.close()
    thread.join(10)
    assert not thread.is_alive()


GARBAGE = [
    b"\n",
    b"hello\n",
    b"{\n",
    b'{"op": "done"\n',
    b"\xff\xfe\x00\n",
    b"\x80\x04\x95\n",
    b"{'op': 'done'}\n",
    b"1" * 5000 + b"\n",
    b'{"ms": ' + b"1" * 5000 + b"}\n",
    b"[" * 200_000 + b"\n",
    b'{"a":' * 200_000 + b"\n",
]


@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: repr(data[:12]))
def test_garbage_is_a_protocol_error(raw: tuple[Channel, socket.socket], data: bytes) -> None:
    channel, peer = raw
    thread = threading.Thread(target=peer.sendall, args=(data,))
    thread.start()
    with pytest.raises(ProtocolError) as caught:
        channel.receive(5)
    thread.join(5)
    assert len(str(caught.value)) < 500, "a log is for reading"


@pytest.mark.parametrize("data", [b"[]", b"1", b'"done"', b"null", b"true", b"NaN", b'[{"op": "done"}]'])
def test_a_message_that_is_not_an_object_is_a_protocol_error(
    raw: tuple[Channel, socket.socket], data: bytes
) -> None:
    channel, peer = raw
    peer.send(data + b"\n")
    with pytest.raises(ProtocolError, match="not an object"):
        channel.receive(5)


def test_after_a_bad_line_the_next_is_read(raw: tuple[Channel, socket.socket]) -> None:
    channel, peer = raw
    peer.send(b'garbage\n{"op": "done"}\n')
    with pytest.raises(ProtocolError):
        channel.receive(5)
    assert channel.receive(5) == {"op": "done"}


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_never_opened(raw: tuple[Channel, socket.socket], tmp_path: Path, protocol: int) -> None:
    channel, peer = raw
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"), protocol=protocol)
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists(), "the bomb is none"
    (tmp_path / "exploded").rmdir()
    peer.send(bomb + b"\n")
    peer.close()
    for _ in range(bomb.count(b"\n") + 1):
        with pytest.raises((ProtocolError, ChannelClosed)):
            channel.receive(5)
    assert not (tmp_path / "exploded").exists()


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.send(data)
    theirs.close()
    for _ in range(len(data) + 1):
        try:
            assert isinstance(channel.receive(5), dict)
        except ProtocolError:
            continue
        except ChannelClosed:
            break
    channel.close()
