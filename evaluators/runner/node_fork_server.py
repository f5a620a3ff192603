"""One fork server per node, from which the builders' fork servers are forked: if sixteen processes imported
torch concurrently, they would occupy as many cores for seconds.

It listens on a socket of the abstract namespace, to which no confined process can connect (Landlock, seccomp
and a network namespace each prevent that), and serves only unconfined processes of this user. A process that
connects gets its own fork server, which ends when the process closes its side of the connection.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path

from evaluators.isolation import confinement
from evaluators.runner import fork_server
from evaluators.runner.fork_server import ForkServer, start_module
from evaluators.system import process_tree
from evaluators.system.channel import Channel, ChannelClosed

BACKLOG = 1024


class NodeForkServer:
    """The process that listens. It ends with the process that started it or when it is closed; the fork
    servers forked from it continue."""

    def __init__(self, root: Path) -> None:
        """Serves the pool whose scratch folders are in `root`. Connections made from now on wait until torch
        has been imported. Raises OSError (EADDRINUSE) if there is already one."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(_address(root))
            listener.listen(BACKLOG)
            self._process, self._channel = start_module(
                "evaluators.runner.node_fork_server", confinement.clean_environment(), listener.fileno()
            )

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._channel.close()


def new_fork_server(root: Path) -> tuple[ForkServer, NodeForkServer | None]:
    """A new fork server, and the node's fork server if it had to be started: the caller must close it. Raises
    ChannelClosed."""
    own: NodeForkServer | None = None
    try:
        while (channel := _connect(root)) is None:
            if own is not None:
                raise ChannelClosed("the node's fork server has died")
            own = _try_to_start(root)
        return ForkServer(channel), own
    except ChannelClosed:
        if own is not None:
            own.close()
        raise


def _connect(root: Path) -> Channel | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(_address(root))
    except ConnectionRefusedError:
        connection.close()
        return None
    if not _is_ours(connection):
        connection.close()
        raise ChannelClosed("the node's fork server is another user's")
    return Channel(connection)


def _try_to_start(root: Path) -> NodeForkServer | None:
    try:
        return NodeForkServer(root)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # another builder was faster
            return None
        raise ChannelClosed(f"the node's fork server does not start: {error}") from error


def main() -> None:
    """The node's fork server as a process."""
    process_tree.rename("node forkserver")
    owner, listener = Channel.from_fd(int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the forked ones
    fork_server.preload()
    fork_server.warm_up_triton()
    while True:
        readable, _, _ = select.select([listener.fileno(), owner.fileno()], [], [])
        if owner.fileno() in readable:
            return  # the owner only ever closes it
        connection, _ = listener.accept()
        if _is_ours(connection) and not _is_confined(connection) and os.fork() == 0:
            listener.close()
            owner.close()
            with contextlib.suppress(ChannelClosed):
                fork_server.serve(Channel(connection))
            os._exit(0)
        connection.close()


def _address(root: Path) -> str:
    return f"\0ideatree-{os.getuid()}-{hashlib.sha256(bytes(root)).hexdigest()[:32]}"


def _is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end, or the one that listens there, belongs to this user."""
    return _peer(connection)[1] == os.getuid()


def _is_confined(connection: socket.socket) -> bool:
    """Whether the process at the other end has given up gaining privileges, as every runner has, and this one
    has not."""
    return _cannot_gain_privileges(str(_peer(connection)[0])) and not _cannot_gain_privileges("self")


def _cannot_gain_privileges(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return "NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text()
    return True  # the process is gone


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user id of the other end."""
    credentials = struct.Struct("3i")
    pid, uid, _ = credentials.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    )
    return pid, uid


if __name__ == "__main__":
    main()
