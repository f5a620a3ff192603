"""What a pool requires of the machines that do its work. `local_host.py` uses threads of this process, for
debugging; `ray_host.py` uses Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from evaluators.build.builder import Build
from evaluators.device.child_processes import WorkerBroken
from evaluators.records.configurations import ConfigurationLimits
from evaluators.records.evaluation import Evaluation
from evaluators.records.opening import Opening
from evaluators.records.probe import Probe
from evaluators.records.problem import Kernel, Problem
from evaluators.records.reference_audit import ReferenceAudit
from evaluators.records.timing import Effort

OnStage = Callable[[str], None]


class WorkerDied(Exception):
    """The process or node that did the work is gone; another has replaced it."""


class DeviceGone(WorkerBroken):
    """No worker starts for the device, because its node may be gone. `Host.until_back` waits for another."""


class Host(Protocol):
    """Where the work is done: `devices` measurements and `cores` builds run concurrently."""

    devices: int
    cores: int
    configs: ConfigurationLimits
    """How far the configurations of a kernel are searched."""

    async def facts(self, device: int, problem: Problem) -> dict[str, str]:
        """Opens the problem on a device; returns the facts of device and software. Raises UnfitProblem if its
        reference cannot be run or cannot judge, WorkerBroken (DeviceGone) with the reason if anything else is
        wrong, or WorkerDied."""
        ...

    async def opening(self, device: int, problem: Problem) -> Opening:
        """Opens the problem on a device; returns where the time went. Raises as `facts` does."""
        ...

    async def audit(self, device: int, problem: Problem) -> ReferenceAudit:
        """How well the problem's reference can judge kernels. Raises WorkerBroken or WorkerDied."""
        ...

    async def architecture(self) -> str:
        """The GPUs' architecture for builds ("9.0"), available before any problem is open. Raises
        WorkerBroken."""
        ...

    async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
        """Builds the kernel. Raises WorkerDied."""
        ...

    async def measure(
        self,
        device: int,
        problem: Problem,
        kernel: Kernel,
        archive: bytes,
        effort: Effort,
        more: bool,
        on_stage: OnStage,
    ) -> Evaluation:
        """Measures a built kernel on this device. `more`: its next case follows on the device (see
        `Worker.measure`). Raises UnfitProblem, WorkerBroken or WorkerDied."""
        ...

    async def compare(
        self,
        device: int,
        problem: Problem,
        kernels: Sequence[Kernel],
        archives: Sequence[bytes],
        effort: Effort,
    ) -> list[Evaluation]:
        """Compares distinct kernels in one session. Raises WorkerBroken or WorkerDied."""
        ...

    async def probe(self, device: int, problem: Problem, kernel: Kernel, archive: bytes) -> Probe:
        """Times a built probe on this device. Raises UnfitProblem, WorkerBroken or WorkerDied."""
        ...

    async def until_back(self, device: int) -> None:
        """Returns when a worker has started for a device that was gone."""
        ...

    def close(self, *, now: bool = False) -> None:
        """Ends everything that was started; `now`: without waiting for work in progress."""
        ...
