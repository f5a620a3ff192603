"""The problems that a worker has open: the one in use, and small ones that may be used again."""

from __future__ import annotations

from evaluators.device.child_processes import ProblemProcesses

LEAST_OPEN, MOST_OPEN, OPEN_SHARE = 8, 32, 0.25
"""Problems that may be open at a time, and more, up to a number, where all of them take no larger share of
the memory: a kernel that is judged on several cases goes from one to the next, and the next kernel again. An
operator of `operators/opinfo` has about 14 at three types, and each would be opened for each kernel."""


class OpenProblems:
    """By their ids, in the order in which they were used last."""

    def __init__(self) -> None:
        self._open: dict[str, ProblemProcesses] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def in_use(self) -> ProblemProcesses | None:
        """The one that was used last."""
        return next(reversed(self._open.values()), None)

    def use(self, problem: str) -> ProblemProcesses | None:
        """The processes of the problem with this id, where it is open; those of the others stand still."""
        if (known := self._open.pop(problem, None)) is not None:
            self.add(known)
        return known

    def add(self, processes: ProblemProcesses) -> None:
        """One that was just opened, and is in use from now on."""
        for other in self._open.values():
            if other.prefork is not processes.prefork:
                other.prefork.stop()
        self._open[processes.problem.id] = processes

    def make_room(self, *, all_of_it: bool = False) -> None:
        """Closes those that hold much memory, and the ones used longest ago where there are too many; for
        `all_of_it` every one. Raises ChannelClosed or ChannelTimeout."""
        kept = [] if all_of_it else self._last_ones()
        for name in [name for name in self._open if name not in kept]:
            self._open.pop(name).close()

    def _last_ones(self) -> list[str]:
        """Those that may stay beside the next one, the one that was used last first."""
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
        """All of them, whose processes are gone."""
        self._open.clear()
