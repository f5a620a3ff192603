"""A fake host, and pools on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from evaluators.build.builder import Build
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.records.configurations import ConfigurationLimits
from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.opening import Opening
from evaluators.records.probe import Probe, ProbeStatus, ProbeTimes
from evaluators.records.problem import Kernel, Problem
from evaluators.records.resources import FunctionResources
from evaluators.records.timing import Effort
from evaluators.scheduler.host import DeviceGone, OnStage, WorkerDied
from evaluators.scheduler.pool import Pool

ON_GPU = Problem(name="level1/fake", source="class Model: ...", device="cuda")
ON_CPU = replace(ON_GPU, device="cpu")
CORRECT = Evaluation(
    status=Status.CORRECT,
    timing=Timing(kernel_ms=1.0, eager_ms=2.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1),
    device_s=0.5,
)
RESOURCES = (FunctionResources(name="fake", registers=32, stack_bytes=8),)
TIMED = Probe(status=ProbeStatus.TIMED, times=ProbeTimes.of([1.0] * 6, [2.0] * 6), device_s=0.5)
Act = Callable[[], Any]


def kernel(name: object = "a") -> Kernel:
    return Kernel(source=f"# {name}", language="cuda")


def die() -> Any:
    raise WorkerDied("the node is gone")


def leave() -> Any:
    raise DeviceGone("the node is gone")


def break_down() -> Any:
    raise WorkerBroken("the judge process died")


class FakeHost:
    """Executes a given act at each measurement and build, and records what ran concurrently."""

    def __init__(self, *, devices: int = 1, cores: int = 1, work_s: float = 0.0) -> None:
        self.devices, self.cores = devices, cores
        self.configs = ConfigurationLimits()
        self.work_s = work_s
        self.measuring: list[Act] = []
        self.building: list[Act] = []
        self.used: Counter[int] = Counter()
        self.measured: Counter[str] = Counter()
        self.built: Counter[str] = Counter()
        self.architectures: set[str] = set()
        self.archives: set[bytes] = set()
        self.compared: list[tuple[str, ...]] = []
        self.opened: list[str] = []
        self.known: list[str] = []
        self.unfit: list[Problem] = []
        self.facts_s = 0.0
        self.sick: set[int] = set()
        self.gone: set[int] = set()
        self.canaries_ms: dict[int, float] = {}
        self.order: list[tuple[int, str]] = []
        self.closed = 0
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.overlaps: set[tuple[str, ...]] = set()

    async def facts(self, device: int, problem: Problem) -> dict[str, str]:
        self.opened.append(problem.name)
        await asyncio.sleep(self.facts_s)
        self.known.append(problem.name)
        if device in self.sick:
            raise WorkerBroken("the device is lost")
        return {"device": "fake", "architecture": "9.0"}

    async def opening(self, device: int, problem: Problem) -> Opening:
        await self.facts(device, problem)
        if problem in self.unfit:
            raise UnfitProblem("it keeps state")
        return Opening(problem=problem.name, seconds={"the rest": 1.0})

    async def architecture(self) -> str:
        return "9.0"

    async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
        self.built[kernel.id] += 1
        self.architectures.add(architecture)
        async with self._at("build"):
            act = self.building.pop(0) if self.building else None
            return act() if act else Build(seconds=0.25, archive=kernel.id.encode(), resources=RESOURCES)

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
        self.measured[kernel.id] += 1
        self.used[device] += 1
        self.archives.add(archive)
        self.order.append((device, problem.name))
        async with self._at("measure"), self._at(f"device {device}"):
            on_stage("checking")
            if device in self.gone:
                raise DeviceGone("the node is gone")
            if device in self.sick:
                raise WorkerBroken("the device is lost")
            act = self.measuring.pop(0) if self.measuring else None
            canary = {"canary_ms": str(self.canaries_ms[device])} if device in self.canaries_ms else {}
            told = replace(CORRECT, log=f"{kernel.id} {effort}", environment={"device": "fake"} | canary)
            return act() if act else told

    async def compare(
        self,
        device: int,
        problem: Problem,
        kernels: Sequence[Kernel],
        archives: Sequence[bytes],
        effort: Effort,
    ) -> list[Evaluation]:
        self.compared.append(tuple(each.id for each in kernels))
        self.archives.update(archives)
        async with self._at("measure"), self._at(f"device {device}"):
            if device in self.sick:
                raise WorkerBroken("the device is lost")
            act = self.measuring.pop(0) if self.measuring else None
            if act:
                act()
            return [replace(CORRECT, log=f"{each.id} {effort}") for each in kernels]

    async def probe(self, device: int, problem: Problem, kernel: Kernel, archive: bytes) -> Probe:
        self.used[device] += 1
        self.archives.add(archive)
        self.order.append((device, problem.name))
        async with self._at("measure"), self._at(f"device {device}"):
            act = self.measuring.pop(0) if self.measuring else None
            return act() if act else TIMED

    async def until_back(self, device: int) -> None:
        while device in self.gone:
            await asyncio.sleep(0)

    def close(self, *, now: bool = False) -> None:
        self.closed += 1

    @contextlib.asynccontextmanager
    async def _at(self, lane: str) -> Any:
        self.now[lane] += 1
        self.most[lane] = max(self.most[lane], self.now[lane])
        self.overlaps.add(tuple(sorted(name for name, n in self.now.items() if n and "device" not in name)))
        try:
            await asyncio.sleep(self.work_s)
            yield
        finally:
            self.now[lane] -= 1


def evaluated(host: FakeHost, problem: Problem = ON_GPU, **options: Any) -> Evaluation:
    return asyncio.run(Pool(host).evaluate(problem, kernel(), **options))


def run_many(host: FakeHost, problem: Problem, count: int) -> list[Evaluation]:
    async def all_of_them() -> list[Evaluation]:
        pool = Pool(host)
        await pool.describe(problem)
        return list(await asyncio.gather(*(pool.evaluate(problem, kernel(n)) for n in range(count))))

    return asyncio.run(all_of_them())


def find_unfit() -> Any:
    raise UnfitProblem("the reference cannot judge a kernel: zeros would pass")


OTHER = replace(ON_GPU, name="level1/other", source="class Model: pass")


async def judged(
    pool: Pool, *, count: int, first: int = 0, problem: Problem = ON_GPU, at_once: int = 1
) -> list[Status]:
    """Evaluates new kernels, a few at a time."""
    found = []
    for n in range(first, first + count, at_once):
        some = [pool.evaluate(problem, kernel(m)) for m in range(n, min(n + at_once, first + count))]
        found += [each.status for each in await asyncio.gather(*some)]
    return found
