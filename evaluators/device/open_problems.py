"""The problems that a worker has open: the one in use, and small ones that may be used again."""

from __future__ import annotations

from evaluators.device.child_processes import ProblemProcesses

LEAST_OPEN, MOST_OPEN, OPEN_SHARE = 8, 32, 0.25
"""Problems that may be open at once, the higher number they may reach while they all use no more than this
share of the memory. A kernel that is judged on several cases goes from one to the next, and so does the next
kernel. An operator of `operators/opinfo` has about 14 cases at three dtypes, which would otherwise be opened
for each kernel."""


class OpenProblems:
    """Open problems by id, the least recently used first."""

    def __init__(self) -> None:
        self._open: dict[str, ProblemProcesses] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def in_use(self) -> ProblemProcesses | None:
        """The most recently used problem."""
        return next(reversed(self._open.values()), None)

    def use(self, problem: str) -> ProblemProcesses | None:
        """The processes of the problem with this id, if it is open. Those of the others are stopped."""
        if (known := self._open.pop(problem, None)) is not None:
            self.add(known)
        return known

    def add(self, processes: ProblemProcesses) -> None:
        """Adds a problem that was just opened and is now in use."""
        for other in self._open.values():
            if other.prefork is not processes.prefork:
                other.prefork.stop()
        self._open[processes.problem.id] = processes

    def make_room(self, *, all_of_it: bool = False) -> None:
        """Closes problems that use much memory, and the least recently used ones if there are too many; with
        `all_of_it`, every one. Raises ChannelClosed or ChannelTimeout."""
        kept = [] if all_of_it else self._last_ones()
        for name in [name for name in self._open if name not in kept]:
            self._open.pop(name).close()

    def _last_ones(self) -> list[str]:
        """The problems that may stay open with the next one, the most recently used first."""
        kept: list[str] = []
        share = 0.0
        for name, each in reversed(self._open.items()):
            if not each.is_small:
                continue
            share += each.memory_share
            if len(kept) + 1 >= (LEAST_OPEN if share > OPEN_SHARE else MOST_OPEN):
                break
            kept.append(name)
        return kept

    def forget(self) -> None:
        """Drops all problems, whose processes are gone."""
        self._open.clear()
