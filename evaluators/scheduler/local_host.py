"""A host without Ray: threads of this process. For debugging, and for machines without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from evaluators.build.builder import Build, build, close_thread_fork_server
from evaluators.device.child_processes import WorkerBroken
from evaluators.device.settings import Settings
from evaluators.device.worker import Worker
from evaluators.isolation import scratch
from evaluators.records.evaluation import Evaluation
from evaluators.records.opening import Opening
from evaluators.records.probe import Probe
from evaluators.records.problem import Kernel, Problem
from evaluators.records.reference_audit import ReferenceAudit
from evaluators.records.timing import Effort
from evaluators.scheduler.host import OnStage, WorkerDied
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed

P = ParamSpec("P")
T = TypeVar("T")


class LocalHost:
    """One thread and worker per device, one thread per build. With `on_gpu`, each GPU of this machine is a
    device."""

    def __init__(self, *, settings: Settings, on_gpu: bool) -> None:
        gpus = visible_gpus() if on_gpu else []
        self.devices = max(1, len(gpus))
        self.cores = len(os.sched_getaffinity(0))  # Slurm may have given this process only some of them
        self._settings, self.configs = settings, settings.configs
        self._root = scratch.scratch_root(f"local-{os.getpid()}-{secrets.token_hex(4)}")
        scratch.claim(self._root)
        # Each worker keeps one thread for life: its processes end with the thread that started them.
        self._thread_ids: list[int] = []
        self._threads = [self._thread() for _ in range(self.devices)]
        self._builders = [self._thread() for _ in range(self.cores)]
        self._idle = list(self._builders)
        self._workers = [
            Worker(root=self._root, settings=settings, visible_gpu=gpus[number] if gpus else "")
            for number in range(self.devices)
        ]

    async def facts(self, device: int, problem: Problem) -> dict[str, str]:
        """See `host.Host`."""
        return await self._run(device, Worker.open, problem)

    async def opening(self, device: int, problem: Problem) -> Opening:
        """See `host.Host`."""
        return await self._run(device, Worker.opening, problem)

    async def audit(self, device: int, problem: Problem) -> ReferenceAudit:
        """See `host.Host`."""
        return await self._run(device, Worker.audit, problem)

    async def architecture(self) -> str:
        """See `host.Host`."""
        try:
            return self._workers[0].gpu.architecture
        except OSError as error:
            raise WorkerBroken(str(error)) from error

    async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
        """See `host.Host`."""
        # The pool runs at most as many builds as there are cores, so one builder is idle.
        builder = self._idle.pop()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                builder,
                lambda: build(
                    problem,
                    kernel,
                    root=self._root,
                    architecture=architecture,
                    timeout_s=self._settings.build_timeout_s,
                    cache=self._settings.build_cache,
                ),
            )
        except ChannelClosed as error:
            raise WorkerDied(str(error)) from error
        finally:
            self._idle.append(builder)

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
        """See `host.Host`."""
        loop = asyncio.get_running_loop()

        def say(stage: str) -> None:
            # the loop has closed, so this result is no longer awaited
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(on_stage, stage)

        return await self._run(
            device, Worker.measure, problem, kernel, archive, effort=effort, more=more, on_stage=say
        )

    async def compare(
        self,
        device: int,
        problem: Problem,
        kernels: Sequence[Kernel],
        archives: Sequence[bytes],
        effort: Effort,
    ) -> list[Evaluation]:
        """See `host.Host`."""
        return await self._run(device, Worker.compare, problem, kernels, archives, effort=effort)

    async def probe(self, device: int, problem: Problem, kernel: Kernel, archive: bytes) -> Probe:
        """See `host.Host`."""
        return await self._run(device, Worker.probe, problem, kernel, archive)

    async def until_back(self, device: int) -> None:
        """See `host.Host`. A device of this machine is never gone."""

    def close(self, *, now: bool = False) -> None:
        """See `host.Host`."""
        if now:  # so that threads that wait for their processes end now
            for thread_id in self._thread_ids:
                for pid in process_tree.children_of_thread(thread_id):
                    process_tree.kill_tree(pid)
        for thread, worker in zip(self._threads, self._workers, strict=True):
            thread.submit(worker.close)
            thread.shutdown()
        for builder in self._builders:
            builder.submit(close_thread_fork_server)
            builder.shutdown()
        scratch.release(self._root)

    async def _run(
        self, device: int, method: Callable[Concatenate[Worker, P], T], *args: P.args, **options: P.kwargs
    ) -> T:
        """The result of a method of the device's worker, in the worker's thread."""
        call = functools.partial(method, self._workers[device], *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads[device], call)

    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, initializer=lambda: self._thread_ids.append(threading.get_native_id()))


def visible_gpus() -> list[str]:
    """Values for CUDA_VISIBLE_DEVICES that each name one GPU."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(n) for n in range(torch.cuda.device_count())]
