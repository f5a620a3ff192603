"""A candidate's runner in its scratch folder, for one problem or for several untimed ones in turn."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from evaluators.build.builder import scratch_folder
from evaluators.device.child_processes import ProblemProcesses
from evaluators.records.problem import Kernel, Problem


class CandidateRunner:
    """The runner's process and folder, which end together."""

    def __init__(self, processes: ProblemProcesses, kernel: Kernel, root: Path, archive: bytes) -> None:
        """Raises ChannelClosed, ChannelTimeout or OSError if no runner starts."""
        self._kernel, self._fork_server = kernel, processes.fork_server
        self.is_new = True
        """Whether the judge process does not have it yet."""
        with ExitStack() as folder:
            self.scratch = folder.enter_context(scratch_folder(processes.problem, kernel, root, archive))
            self.child = processes.prefork.take(self.scratch)
            self._folder = folder.pop_all()

    def can_continue(self, problem: Problem, kernel: Kernel) -> bool:
        """Whether it may be judged on this problem after an untimed one. A timed problem takes a new process,
        because its baseline is timed before any candidate is loaded."""
        return kernel.id == self._kernel.id and not problem.timed

    def leave(self) -> None:
        """Removes the folder after the process has ended."""
        self._folder.close()

    def end(self) -> None:
        """Kills the runner and everything it started, if it still runs. Raises ChannelClosed or
        ChannelTimeout."""
        with self._folder:
            self._fork_server.end(self.child)
