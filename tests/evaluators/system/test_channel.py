"""The channel: messages and descriptors arrive whole and in order, and no wait is endless."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.system.channel import (
    MAX_FDS,
    Channel,
    ChannelClosed,
    ChannelTimeout,
    ProtocolError,
    printable,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def open_fds() -> set[str]:
    return {entry for entry in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{entry}")}


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), min_size=1, max_size=4))
def test_messages_arrive_whole_and_in_order(messages: list[dict[str, object]]) -> None:
    a, b = Channel.pair()
    for message in messages:
        a.send(message)
    assert [b.receive(5) for _ in messages] == messages
    a.close()
    b.close()


def test_a_line_break_in_a_text_does_not_end_a_message(ends: tuple[Channel, Channel]) -> None:
    ends[0].send({"log": 'one\ntwo\r\n"three"\u2028'})
    assert ends[1].receive(5) == {"log": 'one\ntwo\r\n"three"\u2028'}


def test_a_message_larger_than_the_socket_holds(ends: tuple[Channel, Channel]) -> None:
    message = {"text": "x" * 3_000_000}
    sender = threading.Thread(target=ends[0].send, args=(message,))
    sender.start()
    assert ends[1].receive(10) == message
    sender.join(10)


def test_a_message_in_pieces_is_one_message(raw: tuple[Channel, socket.socket]) -> None:
    channel, peer = raw
    data = json.dumps({"text": "äöü"}, ensure_ascii=False).encode() + b"\n"
    for byte in data[:-1]:
        peer.send(bytes([byte]))
    with pytest.raises(ChannelTimeout):
        channel.receive(0.02)
    peer.send(data[-1:])
    assert channel.receive(5) == {"text": "äöü"}


def test_has_message_considers_only_read_data(raw: tuple[Channel, socket.socket]) -> None:
    channel, peer = raw
    peer.send(b'{"n": 1}\n{"n": 2}\n')
    assert not channel.has_message()
    assert channel.receive(5) == {"n": 1}
    assert channel.has_message()
    assert channel.receive(0) == {"n": 2}
    assert not channel.has_message()


def test_descriptors_travel_with_a_message(ends: tuple[Channel, Channel]) -> None:
    read, write = os.pipe()
    ends[0].send({"op": "take"}, (read, write))
    assert ends[1].receive(5) == {"op": "take"}
    their_read, their_write = ends[1].take_fds(2)
    os.write(their_write, b"through")
    assert os.read(read, 10) == b"through"
    assert {their_read, their_write}.isdisjoint({read, write})
    for fd in (read, write, their_read, their_write):
        os.close(fd)


def test_descriptors_are_taken_in_order_and_once(ends: tuple[Channel, Channel], tmp_path: Path) -> None:
    for name in ("one", "two"):
        fd = os.open(tmp_path / name, os.O_CREAT | os.O_RDWR)
        os.write(fd, name.encode())
        ends[0].send({"name": name}, (fd,))
        os.close(fd)
    ends[1].receive(5)
    ends[1].receive(5)
    taken = [ends[1].take_fds(1)[0], ends[1].take_fds(1)[0]]
    assert [os.pread(fd, 9, 0) for fd in taken] == [b"one", b"two"]
    with pytest.raises(ProtocolError, match="expected 1 descriptors, received 0"):
        ends[1].take_fds(1)
    for fd in taken:
        os.close(fd)


def test_missing_descriptors_are_a_protocol_error(ends: tuple[Channel, Channel]) -> None:
    ends[0].send({"op": "take", "fds": 3})
    ends[1].receive(5)
    with pytest.raises(ProtocolError, match="expected 3 descriptors, received 0"):
        ends[1].take_fds(3)


def test_unexpected_descriptors_cannot_pile_up(raw: tuple[Channel, socket.socket]) -> None:
    """A reader without free descriptors could open nothing any more."""
    channel, peer = raw
    read, write = os.pipe()
    before = open_fds()
    socket.send_fds(peer, [b"{}\n"], [read] * MAX_FDS)
    assert channel.receive(5) == {}
    socket.send_fds(peer, [b"{}\n"], [read])
    with pytest.raises(ProtocolError, match="descriptors"):
        channel.receive(5)
    assert open_fds() == before
    os.close(read)
    os.close(write)


def test_closing_closes_descriptors_that_were_not_taken() -> None:
    before = open_fds()
    a, b = Channel.pair()
    a.send({}, (0, 0))
    b.receive(5)
    a.close()
    b.close()
    assert open_fds() == before


def test_a_closed_peer_is_noticed_by_both_directions(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(ChannelClosed):
        ends[1].receive(5)
    with pytest.raises(ChannelClosed):
        ends[1].send({"op": "run"})
    with pytest.raises(ChannelClosed):
        ends[1].send({"op": "run"}, (0,))


def test_messages_before_the_end_are_still_received(ends: tuple[Channel, Channel]) -> None:
    ends[0].send({"op": "last words"})
    ends[0].close()
    assert ends[1].receive(5) == {"op": "last words"}
    with pytest.raises(ChannelClosed):
        ends[1].receive(5)


class Hasty(socket.socket):
    """Its peer closes as soon as the bytes are sent."""

    peer: socket.socket

    def send(self, *arguments: Any) -> int:
        sent = super().send(*arguments)
        assert json.loads(self.peer.recv(100)) == {"op": "last words"}
        self.peer.close()
        return sent


def test_a_message_that_was_heard_is_sent_even_if_the_peer_is_gone_by_then() -> None:
    ours, peer = socket.socketpair()
    hasty = Hasty(fileno=ours.detach())
    hasty.peer = peer
    channel = Channel(hasty)
    channel.send({"op": "last words"})
    with pytest.raises(ChannelClosed):
        channel.receive(5)
    channel.close()


def test_a_peer_that_died_in_mid_message(raw: tuple[Channel, socket.socket]) -> None:
    channel, peer = raw
    peer.send(b'{"op": "do')
    peer.close()
    with pytest.raises(ChannelClosed):
        channel.receive(5)


def test_silence_ends_in_a_timeout(ends: tuple[Channel, Channel]) -> None:
    start = time.monotonic()
    with pytest.raises(ChannelTimeout):
        ends[1].receive(0.1)
    assert time.monotonic() - start >= 0.1
    ends[0].send({"op": "late"})
    assert ends[1].receive(5) == {"op": "late"}


def test_waiting_leaves_the_message_unread(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    with pytest.raises(ChannelTimeout):
        a.wait(0.01)
    b.send({"op": "confined"})
    b.close()
    a.wait(1.0)
    assert a.receive() == {"op": "confined"}
    with pytest.raises(ChannelClosed):
        a.wait(1.0)


@pytest.mark.slow
def test_dripping_bytes_do_not_stretch_the_deadline(raw: tuple[Channel, socket.socket]) -> None:
    channel, peer = raw
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            peer.send(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    start = time.monotonic()
    try:
        with pytest.raises(ChannelTimeout):
            channel.receive(0.3)
        assert time.monotonic() - start < 5
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
@given(st.text(st.characters()) | JSON)
def test_printable_text_fits_into_any_file(value: object) -> None:
    text = printable(value, 50)
    text.encode()
    assert len(text) <= 50
    if isinstance(value, str) and value.isascii():
        assert text == value[:50]
