"""Whose code did a candidate's work, where a problem's kernels must do it themselves (`no_library`).

On a GPU the device's trace decides. On a CPU looks at the candidate's threads tell the share, and decide only
on plain evidence, so that no verdict depends on what else runs on the machine (see `stack_samples.py`).
"""

from __future__ import annotations

import time
from pathlib import Path

from evaluators.evaluation import Status
from evaluators.isolation.scratch import SOURCE
from evaluators.judge.reference_session import Court
from evaluators.judge.runner_client import Refused, Side
from evaluators.judge.stack_samples import Looks, not_its_own, of_kernels
from evaluators.system.process_inspection import can_peek

CALLS = 4
"""With different inputs."""
ROW_LOOKS, MOST_ROW_CALLS, MOST_ROW_BYTES = 4, 1000, 64 * 2**20
"""Of calls that are looked at together: for how many looks there should be time, how many they are at most,
and what all their outputs may take. Calls of microseconds are met by a look as well as others."""
PATIENCE_S = 20.0
"""For looks: on an idle machine they take half a second."""


class Attribution:
    """Of one candidate's work. Where the policy is `any` it does nothing."""

    def __init__(self, court: Court, side: Side, scratch: str) -> None:
        """`scratch`: the candidate's folder, before any of its code has run."""
        self._court, self._side = court, side
        self._source, self._looks = "", None
        if court.library_kernels is not None:
            self._source = Path(scratch, SOURCE).read_text()
        if court.problem["libraries"] == "no_library" and court.device == "cpu" and can_peek():
            self._looks = Looks(side.pid, scratch)
        self.own_share: float | None = None
        """The part of the computing that the candidate's own code did; None where that is not known."""

    def count(self) -> None:
        """Finds it out. Raises Refused."""
        if self._court.library_kernels is not None:
            reason = self._traced()
        elif self._looks is not None:
            reason = self._looked_at(self._looks)
        else:
            return
        if reason:
            raise Refused(Status.REJECTED, reason, "library")

    def _traced(self) -> str | None:
        """On a GPU, by some calls."""
        assert self._court.library_kernels is not None
        calls = min(CALLS, self._court.capacity)
        self._court.stage_fresh(calls, self._side)
        seen = of_kernels(self._side.census(calls), self._court.library_kernels, self._source)
        self.own_share = seen.own_share
        return not_its_own(seen)

    def _looked_at(self, looks: Looks) -> str | None:
        """On a CPU, by as many looks as something depends on."""
        start = time.monotonic()
        slots = min(CALLS, self._court.capacity)
        self._court.stage_fresh(slots, self._side)
        most = min(MOST_ROW_CALLS, max(1, MOST_ROW_BYTES // self._court.arena.outputs.call_bytes))
        length = 1
        while not looks.decided and time.monotonic() - start < PATIENCE_S:
            before = looks.count
            self._side.watched([number % slots for number in range(length)], looks)
            if looks.count < before + ROW_LOOKS:
                length = min(2 * length, most)
        self.own_share = looks.own_share
        return looks.reason()
