"""The next candidate's runner, started while the previous candidate is being checked.

Otherwise a device would wait between two candidates until a process is forked, confined and has a CUDA
context. A waiting runner contains nothing of any candidate, and it is stopped during timing.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluators.isolation import scratch
from evaluators.runner.fork_server import ChildProcess, ForkServer
from evaluators.runner.messages import Move
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed

CONFINED_S = 60.0
"""How long a runner may take to start."""

Spec = Callable[[Path], dict[str, Any]]


class Prefork:
    """At most one runner, confined to a folder that later becomes its candidate's scratch folder."""

    def __init__(self, fork_server: ForkServer, root: Path, spec: Spec) -> None:
        """`spec` returns the spec of a runner for a folder (see `runner_process.run`); the folders are
        created in `root`."""
        self._fork_server, self._root, self._spec = fork_server, root, spec
        self._child: ChildProcess | None = None
        self._folder = root
        self._stopped: set[int] = set()

    def start(self) -> None:
        """Forks a runner unless there is one. Raises OSError, or ChannelClosed if the fork server is gone."""
        if self._child is not None:
            return
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = Path(tempfile.mkdtemp(prefix="prefork-", dir=self._root))
        self._child = self._fork_server.fork(self._spec(self._folder))

    def stop(self) -> None:
        """Stops the runner, whatever it is doing, until it is taken."""
        if self._child is not None:
            self._stopped = process_tree.stop_tree(self._child.pid)

    def take(self, folder: Path) -> ChildProcess:
        """The runner, moved to the candidate's scratch folder with the files there. A runner that died while
        waiting is replaced. Raises OSError, or ChannelClosed or ChannelTimeout if none starts."""
        try:
            return self._move(folder)
        except ChannelClosed:
            self.drop()
            return self._move(folder)

    def drop(self) -> None:
        """Ends the runner, if there is one. Raises ChannelClosed or ChannelTimeout."""
        child, self._child, self._stopped = self._child, None, set()
        if child is not None:
            self._fork_server.end(child)
            scratch.remove(self._folder)

    def _move(self, folder: Path) -> ChildProcess:
        self.start()
        assert self._child is not None
        child = self._child
        process_tree.signal_all(self._stopped, signal.SIGCONT)
        child.channel.wait(CONFINED_S)
        for entry in folder.iterdir():
            entry.rename(self._folder / entry.name)
        folder.rmdir()
        self._folder.rename(folder)  # the confinement applies to the folder, not its name
        child.channel.send(Move(scratch=str(folder)).message())
        self._child, self._stopped = None, set()
        return child
