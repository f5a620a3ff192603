"""A candidate's runner in its scratch folder: for one problem, or for several that are not timed, one after
the other."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from evaluators.build.builder import scratch_folder
from evaluators.device.child_processes import ProblemProcesses
from evaluators.records.problem import Kernel, Problem


class CandidateRunner:
    """Its process and its folder, which end together."""

    def __init__(self, processes: ProblemProcesses, kernel: Kernel, root: Path, archive: bytes) -> None:
        """Raises ChannelClosed, ChannelTimeout or OSError where none comes up."""
        self._kernel, self._fork_server = kernel, processes.fork_server
        self.is_new = True
        """Whether it has not been handed to the judge process yet."""
        with ExitStack() as folder:
            self.scratch = folder.enter_context(scratch_folder(processes.problem, kernel, root, archive))
            self.child = processes.prefork.take(self.scratch)
            self._folder = folder.pop_all()

    def may_go_on(self, problem: Problem, kernel: Kernel) -> bool:
        """Whether it may be judged on this problem after another one that was not timed. A timed one takes a
        new process: the baseline is timed before any candidate is loaded."""
        return kernel.id == self._kernel.id and not problem.timed

    def leave(self) -> None:
        """Removes the folder, where the process is gone."""
        self._folder.close()

    def end(self) -> None:
        """Kills it and all that it started, unless it is. Raises ChannelClosed or ChannelTimeout."""
        with self._folder:
            self._fork_server.end(self.child)
