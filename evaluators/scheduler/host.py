"""What a pool asks of the machines that do its work. `local_host.py` has threads of this process, for
debugging; `ray_host.py` has Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from evaluators.build.builder import Build
from evaluators.records.evaluation import Evaluation
from evaluators.records.opening import Opening
from evaluators.records.problem import Kernel, Problem
from evaluators.records.reference_audit import ReferenceAudit

OnStage = Callable[[str], None]


class WorkerDied(Exception):
    """The process or node that did the work is gone; another has taken its place."""


class Host(Protocol):
    """Where the work is done. `devices` measurements and `cores` builds run at a time."""

    devices: int
    cores: int

    async def facts(self, device: int, problem: Problem) -> dict[str, str]:
        """Opens the problem on a device. Raises UnfitProblem when its reference cannot be run or cannot
        judge, WorkerBroken, with the reason, when something else is wrong, or WorkerDied."""
        ...

    async def opening(self, device: int, problem: Problem) -> Opening:
        """Opens the problem on a device, and says where the time went. Raises as `facts` does."""
        ...

    async def audit(self, device: int, problem: Problem) -> ReferenceAudit:
        """What the problem's reference is worth as a judge. Raises WorkerBroken or WorkerDied."""
        ...

    async def architecture(self) -> str:
        """Of the GPUs, as builds need it ("9.0"); known at once, before any problem is open. Raises
        WorkerBroken."""
        ...

    async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
        """Raises WorkerDied."""
        ...

    async def measure(
        self,
        device: int,
        problem: Problem,
        kernel: Kernel,
        archive: bytes,
        thorough: bool,
        more: bool,
        on_stage: OnStage,
    ) -> Evaluation:
        """On the device with this number. `more`: the kernel is measured on another case there next (see
        `Worker.measure`). Raises UnfitProblem, WorkerBroken or WorkerDied."""
        ...

    async def compare(
        self,
        device: int,
        problem: Problem,
        kernels: Sequence[Kernel],
        archives: Sequence[bytes],
        thorough: bool,
    ) -> list[Evaluation]:
        """Of kernels that all differ, in one session. Raises WorkerBroken or WorkerDied."""
        ...

    def close(self, *, now: bool = False) -> None:
        """Ends everything that was started; `now`: without waiting for work that is under way."""
        ...
