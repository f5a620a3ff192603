"""The next candidate's runner, which comes up while the candidate before it is checked.

Between two candidates a device would otherwise wait for a process to be forked, confined and given a CUDA
context. Nothing of any candidate is in a runner on standby, and while anything is timed it is stopped.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluators.isolation import scratch
from evaluators.runner.fork_server import Ward, Zygote
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed

CONFINED_S = 60.0
"""How long a runner may take to come up."""

Spec = Callable[[Path], dict[str, Any]]


class Standby:
    """At most one runner, confined to a folder of its own that becomes its candidate's scratch folder."""

    def __init__(self, zygote: Zygote, root: Path, spec: Spec) -> None:
        """`spec` says what is forked for a folder (see `runner_process.run`); the folders lie in `root`."""
        self._zygote, self._root, self._spec = zygote, root, spec
        self._ward: Ward | None = None
        self._folder = root
        self._stopped: set[int] = set()

    def start(self) -> None:
        """Forks a runner unless one is there. Raises ChannelClosed when the zygote is gone, or OSError."""
        if self._ward is not None:
            return
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = Path(tempfile.mkdtemp(prefix="standby-", dir=self._root))
        self._ward = self._zygote.fork(self._spec(self._folder))

    def stop(self) -> None:
        """Whatever it is about, it goes on when it is taken."""
        if self._ward is not None:
            self._stopped = process_tree.stop_tree(self._ward.pid)

    def take(self, folder: Path) -> Ward:
        """The runner, at home in the candidate's scratch folder, with what lies there. One that has died on
        standby is replaced. Raises ChannelClosed or ChannelTimeout when none comes up, or OSError."""
        try:
            return self._move(folder)
        except ChannelClosed:
            self.drop()
            return self._move(folder)

    def drop(self) -> None:
        """Ends the runner, if there is one. Raises ChannelClosed or ChannelTimeout when that fails."""
        ward, self._ward, self._stopped = self._ward, None, set()
        if ward is not None:
            self._zygote.end(ward)
            scratch.remove(self._folder)

    def _move(self, folder: Path) -> Ward:
        self.start()
        assert self._ward is not None
        ward = self._ward
        process_tree.signal_all(self._stopped, signal.SIGCONT)
        ward.channel.wait(CONFINED_S)
        for entry in folder.iterdir():
            entry.rename(self._folder / entry.name)
        folder.rmdir()
        self._folder.rename(folder)  # it is confined to this folder, whatever its name
        ward.channel.send({"op": "move", "scratch": str(folder)})
        self._ward, self._stopped = None, set()
        return ward
