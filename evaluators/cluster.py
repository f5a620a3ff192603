"""A host on Ray: an actor a GPU, build tasks on CPU cores; a local instance, or a cluster that is joined."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from evaluators import pool
from evaluators.build import Build, build
from evaluators.channel import ChannelClosed
from evaluators.evaluation import Evaluation
from evaluators.pool import WorkerDied
from evaluators.problem import Kernel, Problem
from evaluators.worker import Settings, Worker

logger = logging.getLogger(__name__)


class RayHost:
    """Starts or joins Ray. `address` "" starts a local instance, otherwise the cluster there is joined.

    On a GPU one actor holds each GPU of the cluster; on a CPU there is one actor. Raises ConnectionError
    when the cluster cannot be reached.
    """

    def __init__(self, *, settings: Settings, on_gpu: bool, address: str = "") -> None:
        import ray

        self._ray = ray
        self._settings = settings
        self._started_here = not address
        _connect(address)
        resources = ray.cluster_resources()
        self.devices = int(resources.get("GPU", 0)) if on_gpu else 1
        if self.devices == 0:
            raise ConnectionError(f"the Ray cluster {address or 'on this machine'} has no GPU")
        self.cores = max(1, int(resources.get("CPU", 1)))
        self._root = pool.scratch_root(secrets.token_hex(4))
        options = {"num_gpus": 1, "num_cpus": 0} if on_gpu else {"num_cpus": 0}
        self._actor_class = ray.remote(**options)(Worker)
        self._build_task = ray.remote(num_cpus=1, max_retries=0)(build)
        self._actors = [self._start_actor() for _ in range(self.devices)]

    async def facts(self, problem: Problem) -> dict[str, str]:
        """See `pool.Host`."""
        facts: dict[str, str] = await self._call(0, "open", problem)
        return facts

    async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
        """See `pool.Host`."""
        reference = self._build_task.remote(
            problem,
            kernel,
            root=self._root,
            architecture=architecture,
            timeout_s=self._settings.build_timeout_s,
        )
        try:
            result: Build = await reference
        except (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.NodeDiedError) as error:
            raise WorkerDied(_first_line(error)) from error
        except ChannelClosed as error:
            raise WorkerDied("the build process's zygote is gone") from error
        return result

    async def measure(
        self, device: int, problem: Problem, kernel: Kernel, archive: bytes, thorough: bool
    ) -> Evaluation:
        """See `pool.Host`."""
        evaluation: Evaluation = await self._call(
            device, "measure", problem, kernel, archive, thorough=thorough
        )
        return evaluation

    def close(self) -> None:
        """See `pool.Host`."""
        with contextlib.suppress(Exception):  # the cluster may be gone already, and so is our concern
            closing = [actor.close.remote() for actor in self._actors]
            self._ray.wait(closing, num_returns=len(closing), timeout=10)
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started_here:
            self._ray.shutdown()
        shutil.rmtree(self._root, ignore_errors=True)  # on this node

    async def _call(self, device: int, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return await getattr(self._actors[device], method).remote(*arguments, **options)
        except self._ray.exceptions.RayActorError as error:
            self._actors[device] = self._start_actor()
            raise WorkerDied(_first_line(error)) from error

    def _start_actor(self) -> Any:
        return self._actor_class.remote(root=self._root, settings=self._settings)


def _connect(address: str) -> None:
    import ray

    import evaluators

    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would give its workers niceness 15, where every other process on the machine disturbs a measurement.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if not address:
        root = str(Path(evaluators.__file__).parent.parent)
        ray.init(include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": _with(root)}}, **quiet)
        return
    ray.init(address=address, runtime_env={"py_modules": [evaluators]}, **quiet)


def _with(root: str) -> str:
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
