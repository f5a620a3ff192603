"""A host on Ray: one actor per GPU, build tasks on CPU cores, in a local instance or an existing cluster."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

from evaluators.base.cause import first_line
from evaluators.build.builder import Build, build
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
from evaluators.runner.node_fork_server import NodeForkServer
from evaluators.scheduler.host import DeviceGone, OnStage, WorkerDied
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

START_S = 60.0
"""How long a worker may take to start. On a node that is gone, none starts."""
LOOK_S = 2.0
"""How often a call looks whether Ray still runs. Ray itself notices after 15 seconds, or never."""
SERVERS = ("gcs_server", "raylet")
"""Names of the processes that a local instance of Ray cannot live without."""
LOST = "Ray's own processes have died"


class DeviceActor:
    """The worker of one device, in a separate process."""

    def __init__(self, *, root: Path, settings: Settings, device: str) -> None:
        scratch.claim(root)
        self._root = root
        self._worker = Worker(root=root, settings=settings)
        # A lasting thread, because processes end with the thread that started them. Ray's own thread relays
        # the stages.
        self._thread = ThreadPoolExecutor(1)
        # A failure here recurs, and is reported, when a problem is opened.
        self._thread.submit(self._worker.prepare, device)

    def architecture(self) -> str:
        """See `host.Host`."""
        return self._worker.gpu.architecture

    def run(self, method: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Runs a method of the worker."""
        return self._thread.submit(method, self._worker, *arguments, **options).result()

    def measure_in_stages(
        self, problem: Problem, kernel: Kernel, archive: bytes, effort: Effort, more: bool
    ) -> Iterator[str | Evaluation]:
        """`Worker.measure`, but yields each stage as it begins; the evaluation comes last."""
        said: SimpleQueue[str | Future[Evaluation]] = SimpleQueue()
        work = self._thread.submit(
            self._worker.measure, problem, kernel, archive, effort=effort, more=more, on_stage=said.put
        )
        work.add_done_callback(said.put)
        while isinstance(word := said.get(), str):
            yield word
        yield word.result()

    def close(self) -> None:
        """Ends every process, and removes the scratch folders on this node."""
        self._thread.submit(self._worker.close).result()
        scratch.release(self._root)


class RayHost:
    """Starts or joins Ray. If `address` is "", starts a local instance, otherwise joins that cluster.

    On GPUs one actor owns each GPU that the cluster has now; on CPUs there is one actor. If a node dies, its
    actors move to nodes that join. A local instance whose
    processes have died is started again. Whatever becomes of Ray raises WorkerDied or WorkerBroken: no kernel
    is at fault. Raises ConnectionError if the cluster cannot be reached.
    """

    def __init__(self, *, settings: Settings, on_gpu: bool, address: str = "") -> None:
        import ray

        self._ray = ray
        self._settings, self.configs = settings, settings.configs
        self._started_here = not address
        self._on_client = address.startswith("ray://")
        self._root = scratch.scratch_root(secrets.token_hex(4))
        # It imports torch while Ray starts. On other nodes the first builder starts one.
        self._node_fork_server = None if address else NodeForkServer(self._root)
        with contextlib.ExitStack() as undo:
            if self._node_fork_server is not None:
                undo.callback(self._node_fork_server.close)
            _connect(address)
            if self._started_here:
                undo.callback(ray.shutdown)
            self._servers = _servers() if self._started_here else {}
            resources = ray.cluster_resources()
            self.devices = int(resources.get("GPU", 0)) if on_gpu else 1
            if self.devices == 0:
                raise ConnectionError(f"the Ray cluster {address or 'on this machine'} has no GPU")
            undo.pop_all()
        self.cores = max(1, int(resources.get("CPU", 1)))
        self._device = "cuda" if on_gpu else "cpu"
        # Two, because the architecture is requested while the first problem is being opened.
        self._actor_options = {"num_gpus": int(on_gpu), "num_cpus": 0, "max_concurrency": 2}
        self._asked: set[asyncio.Future[Any]] = set()
        """What Ray has not answered yet."""
        self._starting = asyncio.Lock()
        self._begin()

    def _begin(self) -> None:
        """Starts the workers."""
        self._actor_class = self._ray.remote(**self._actor_options)(DeviceActor)
        self._build_task = self._ray.remote(num_cpus=1, max_retries=0)(_build)
        self._actors = [self._start_actor() for _ in range(self.devices)]
        self._ready: set[int] = set()

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
        actor = await self._actor(0)
        try:
            found: str = await self._answer(0, lambda: actor.architecture.remote())
        except (OSError, WorkerDied) as error:
            raise WorkerBroken(str(error)) from error
        return found

    async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
        """See `host.Host`."""
        await self._ensure_ray()
        settings = {"root": self._root, "settings": self._settings}
        try:
            built: Build = await self._answer(
                None, lambda: self._build_task.remote(problem, kernel, architecture=architecture, **settings)
            )
        except ChannelClosed as error:
            raise WorkerDied("the build process's fork server is gone") from error
        return built

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
        """See `host.Host`. On a cluster joined as a client (`ray://`) stages are not reported."""
        if self._on_client:
            return await self._run(device, Worker.measure, problem, kernel, archive, effort=effort, more=more)
        streaming = (await self._actor(device)).measure_in_stages.options(num_returns="streaming")

        async def begin() -> Any:
            return streaming.remote(problem, kernel, archive, effort, more)

        async def next_word() -> Any:
            word = await anext(words, None)
            return None if word is None else await word

        words = await self._answer(device, begin)
        while (said := await self._answer(device, next_word)) is not None:
            if isinstance(said, Evaluation):
                return said
            on_stage(said)
        raise WorkerDied("the worker ended without an answer")

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
        """See `host.Host`. Ray starts the worker as soon as a node has room for it."""
        while device not in self._ready:
            with contextlib.suppress(WorkerDied):
                await self._answer(device, lambda: self._actors[device].__ray_ready__.remote())
                self._ready.add(device)
                return
            await asyncio.sleep(LOOK_S)

    def close(self, *, now: bool = False) -> None:
        """See `host.Host`."""
        with contextlib.suppress(Exception):  # the cluster may already be gone
            closing = [actor.close.remote() for actor in self._actors]
            self._ray.wait(closing, num_returns=len(closing), timeout=0 if now else 10)
            for actor in self._actors:
                self._ray.kill(actor)
        if self._started_here:
            self._ray.shutdown()
        if self._node_fork_server is not None:
            self._node_fork_server.close()
        scratch.release(self._root)  # on this node, even if an actor had no time to

    async def _run(
        self, device: int, method: Callable[Concatenate[Worker, P], T], *args: P.args, **options: P.kwargs
    ) -> T:
        """The result of a method of the device's worker."""
        actor = await self._actor(device)
        result: T = await self._answer(device, lambda: actor.run.remote(method, *args, **options))
        return result

    async def _actor(self, device: int) -> Any:
        """The device's actor, once it has started. Raises DeviceGone if it does not start."""
        await self._ensure_ray()
        if device not in self._ready:
            try:
                async with asyncio.timeout(START_S):
                    await self._answer(device, lambda: self._actors[device].__ray_ready__.remote())
            except (TimeoutError, WorkerDied) as error:
                self._replace(device)
                raise DeviceGone(f"no worker started for device {device}; its node may be gone") from error
            self._ready.add(device)
        return self._actors[device]

    async def _answer(self, device: int | None, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The result of what `ask` asks of Ray, or its error. Raises WorkerDied if the process that works on
        it, or Ray itself, is gone."""
        errors = self._ray.exceptions
        try:
            return await self._waited_for(ask)
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayError):
                raise WorkerDied(first_line(error.cause)) from error
            # As it was raised there, without Ray's tracebacks in its text.
            raise error.cause from (None if isinstance(error.cause, (WorkerBroken, ChannelClosed)) else error)
        except (errors.RayError, ConnectionError) as error:
            if device is not None and self._runs():
                self._replace(device)
            raise WorkerDied(first_line(error)) from error

    async def _waited_for(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer, while Ray's own processes live: without them there may never be one."""
        if not self._runs():
            raise WorkerDied(LOST)
        answering = asyncio.ensure_future(ask())
        self._asked.add(answering)
        try:
            while not answering.done():
                await asyncio.wait({answering}, timeout=LOOK_S)
                if not answering.done() and not self._runs():
                    raise WorkerDied(LOST)
            if answering.cancelled():
                raise WorkerDied(LOST)
            return answering.result()
        finally:
            answering.cancel()
            self._asked.discard(answering)

    def _runs(self) -> bool:
        """Whether the processes of a local instance live."""
        return all(_name(pid) == name for pid, name in self._servers.items())

    async def _ensure_ray(self) -> None:
        """Starts a local instance again whose processes have died. Raises WorkerBroken."""
        async with self._starting:
            if self._runs():
                return
            logger.warning("%s; it is started again, and work in progress is repeated", LOST)
            while self._asked:  # a reference to the old instance would end this process in the new one
                for each in self._asked:
                    each.cancel()
                await asyncio.sleep(0.01)
            self._actors.clear()
            gc.collect()
            try:
                self._ray.shutdown()
                _connect("")
            except Exception as error:  # of any kind, and Ray's own are not the only ones
                raise WorkerBroken(f"Ray cannot be started again: {first_line(error)}") from error
            self._servers = _servers()
            self._begin()

    def _replace(self, device: int) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError):
            self._ray.kill(self._actors[device])
        with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError):
            self._actors[device] = self._start_actor()
        self._ready.discard(device)

    def _start_actor(self) -> Any:
        return self._actor_class.remote(root=self._root, settings=self._settings, device=self._device)


def _build(problem: Problem, kernel: Kernel, *, root: Path, architecture: str, settings: Settings) -> Build:
    """Runs in a process of Ray's, on any node."""
    scratch.claim(root)
    return build(
        problem,
        kernel,
        root=root,
        architecture=architecture,
        timeout_s=settings.build_timeout_s,
        cache=settings.build_cache,
    )


def _servers() -> dict[int, str]:
    """The processes that a local instance of Ray cannot live without, by pid."""
    found = {pid: _name(pid) for pid in process_tree.children(os.getpid())}
    return {pid: name for pid, name in found.items() if name in SERVERS}


def _name(pid: int) -> str:
    """The name of a process; "" if it is gone or has ended."""
    try:
        head, _, rest = process_tree.read_proc(f"/proc/{pid}/stat").rpartition(")")
    except OSError:
        return ""
    return "" if rest.split()[0] in ("Z", "X") else head.partition("(")[2]


def _connect(address: str) -> None:
    import ray

    import evaluators

    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would give its workers niceness 15, at which every other process on the machine disturbs
    # measurements.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # After a minute without its server, Ray would end this process.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "3600")
    if not address:
        # As a `runtime_env` it would keep Ray from using processes that it has started in advance.
        with _python_path(str(evaluators.PACKAGE.parent)):
            # Without "local" Ray would join any cluster that runs on this machine, and die with it.
            ray.init(address="local", include_dashboard=False, num_cpus=_allowed_cores(), **quiet)
        return
    ray.init(address=address, runtime_env={"py_modules": [evaluators]}, **quiet)


def _allowed_cores() -> int | None:
    """The number of cores that this process is restricted to (`taskset`, Slurm), which Ray ignores; None if
    it may use all cores that Ray counts."""
    allowed = len(os.sched_getaffinity(0))
    return allowed if allowed < (os.cpu_count() or 1) else None


@contextlib.contextmanager
def _python_path(root: str) -> Iterator[None]:
    """Processes started in the block also find the modules in this folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, before]))
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
