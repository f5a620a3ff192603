"""Builds candidates on CPU cores: imports the kernel in the sandbox, so that it compiles what it compiles at
import (see `thin_headers.py`, and `precompile.py` for languages that compile at the first call), and packs
the resulting scratch folder. A build never occupies a GPU.

The scratch folder's path depends only on the kernel and the pool: build systems write absolute paths into
their outputs, and find them up to date when the runner imports the kernel at the same path.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluators.base.languages import build_variables
from evaluators.base.source_file import as_utf8
from evaluators.build.build_cache import BuildCache, build_key
from evaluators.build.toolchain import missing_tool
from evaluators.isolation.scratch import SOURCE, remove, too_much_written
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel, Problem, content_id
from evaluators.records.resources import FunctionResources
from evaluators.runner.fork_server import ChildProcess, ForkServer
from evaluators.runner.messages import Import, ReadResources, ResourcesRead
from evaluators.runner.node_fork_server import NodeForkServer, new_fork_server
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed, ChannelTimeout, Message, ProtocolError, printable
from evaluators.system.deadline import Deadline

MAX_PROCESSES = 4096
MAX_BUILD_PROCESSES = 256
MAX_MEMORY_BYTES = 16 * 2**30
MAX_SCRATCH_BYTES = 2 * 2**30
MAX_ARCHIVE_BYTES = 512 * 2**20
JOBS = 2
"""Concurrent compilers per build: the two halves of an extension. There is already one build per core."""
NICENESS = 19
"""Builds for a GPU yield to the processes of a measurement, which must wake up at once. On a CPU nothing is
measured during builds, so a build that yielded would only wait for other users' processes."""
WATCH_S = 0.05
RESOURCES_S = 5.0
"""The time in which the resources of the compiled functions must be read, which usually takes 10 ms."""
TRANSIENT = (
    "Errno",
    "No space left",
    "Cannot allocate memory",
    "MemoryError",
    "Killed",
    "terminated program",
)
"""Words in the log of a failure that the machine may have caused; such failures are not cached."""


class _ThreadState(threading.local):
    """What a thread reuses from build to build."""

    fork_server: ForkServer | None = None
    node_fork_server: NodeForkServer | None = None
    """Set if this thread started it."""


_thread = _ThreadState()


@dataclass(frozen=True, kw_only=True)
class Build:
    """The result of a build: `archive` (a tar of the scratch folder) if it succeeded, otherwise `status` and
    `log`. `resources` are those of the compiled GPU functions, as far as they are known."""

    seconds: float
    archive: bytes = b""
    resources: tuple[FunctionResources, ...] = ()
    status: Status | None = None
    log: str = ""


def build(
    problem: Problem,
    kernel: Kernel,
    *,
    root: Path,
    architecture: str,
    timeout_s: float,
    cache: BuildCache | None = None,
) -> Build:
    """Builds for a GPU `architecture` ("9.0"; "" for a CPU) within `timeout_s`, or takes the result from the
    `cache`. The kernel's own failure never raises; ChannelClosed means that the builder itself broke."""
    start = time.monotonic()
    key = build_key(problem, kernel, architecture) if cache else ""
    if cache and (entry := cache.get(key)):
        return replace(_from_entry(entry), seconds=time.monotonic() - start)
    try:
        done = _build(_thread_fork_server(root), problem, kernel, root, architecture, timeout_s)
    except (ChannelClosed, ChannelTimeout) as error:
        _drop_fork_server()  # the next build starts another
        raise ChannelClosed(f"the builder's fork server is gone: {error}") from error
    if done.status is Status.COMPILE_ERROR and (
        why := missing_tool(
            kernel.source, done.log, device=problem.device, root=root, architecture=architecture
        )
    ):
        return replace(done, status=Status.INFRASTRUCTURE_ERROR, log=f"{why}\n{done.log}")
    if cache and _will_repeat(done):
        cache.put(key, _to_entry(done))
    return done


class _Failed(Exception):
    """Ends a build with a status and log."""

    def __init__(self, status: Status, log: str) -> None:
        super().__init__(log)
        self.status, self.log = status, log


def _build(
    fork_server: ForkServer, problem: Problem, kernel: Kernel, root: Path, architecture: str, timeout_s: float
) -> Build:
    start, deadline = time.monotonic(), Deadline(timeout_s)
    with scratch_folder(problem, kernel, root) as scratch:
        environment = {"CUDA_VISIBLE_DEVICES": "", "MAX_JOBS": str(JOBS)} | build_environment(architecture)
        child = fork_server.fork(
            runner_spec(
                scratch,
                role="candidate",
                cpu_s=int(timeout_s) * 4,
                environment=environment,
                niceness=NICENESS if architecture else 0,
            )
        )
        status: Status | None = None
        log = ""
        resources: tuple[FunctionResources, ...] = ()
        try:
            _await(fork_server, child, scratch, deadline)
            child.channel.send(Import(problem=problem, architecture=architecture).message())
            answer = _await(fork_server, child, scratch, deadline)
            if answer.get("op") != "imported":
                status, log = Status.COMPILE_ERROR, printable(answer.get("error", ""))
            elif architecture:
                resources = _resources(fork_server, child, scratch, architecture)
        except _Failed as failure:
            status, log = failure.status, failure.log
        finally:
            fork_server.end(child)
        archive = b""
        if status is None:
            try:
                _require_little(scratch)
                archive = _pack(scratch)
            except _Failed as failure:
                status, log = failure.status, failure.log
        seconds = time.monotonic() - start
        return Build(seconds=seconds, archive=archive, resources=resources, status=status, log=log)


def _resources(
    fork_server: ForkServer, child: ChildProcess, scratch: Path, architecture: str
) -> tuple[FunctionResources, ...]:
    """The resources of the functions that the build compiled. Its own sandbox reads them, because the
    binaries are the candidate's. Empty if they cannot be read, for whatever reason: no verdict depends on
    them."""
    try:
        child.channel.send(ReadResources(architecture=architecture).message())
        answer = _await(fork_server, child, scratch, Deadline(RESOURCES_S))
        return ResourcesRead.read(answer).functions
    except (_Failed, ProtocolError, ChannelClosed):  # a fork server that is gone is noticed at the end
        return ()


def _await(fork_server: ForkServer, child: ChildProcess, scratch: Path, deadline: Deadline) -> Message:
    """The build process's next message; meanwhile watches the resources it uses. Raises _Failed, or
    ChannelClosed if the fork server is gone."""
    while True:
        descriptors = [child.channel.fileno(), fork_server.channel.fileno()]
        ready, _, _ = select.select(descriptors, [], [], WATCH_S)
        try:
            return child.channel.receive(0.0)
        except ChannelTimeout:
            pass  # nothing yet, or half a message
        except ProtocolError as error:
            raise _Failed(Status.COMPILE_ERROR, f"the build sent an invalid message: {error}") from error
        except ChannelClosed as error:
            raise _Failed(Status.CRASHED, f"the build process died\n{child.output.end()}") from error
        fork_server.pump(fork_server.channel.fileno() in ready)
        if child.exit_code is not None:
            raise _Failed(Status.CRASHED, f"the build process died\n{child.output.end()}")
        family = [child.pid, *process_tree.descendants(child.pid)]
        if deadline.is_over(family):
            raise _Failed(Status.TIMEOUT, f"the build did not end {deadline.reason}")
        for what, taken, limit in (
            ("processes", len(family), MAX_BUILD_PROCESSES),
            ("bytes of memory", process_tree.memory_bytes(family), MAX_MEMORY_BYTES),
        ):
            if taken > limit:
                raise _Failed(Status.CRASHED, f"the build took {taken:,} {what}; the limit is {limit:,}")
        _require_little(scratch)


def _require_little(scratch: Path) -> None:
    if excess := too_much_written(scratch, MAX_SCRATCH_BYTES):
        raise _Failed(Status.CRASHED, f"the build {excess}")


def _will_repeat(done: Build) -> bool:
    """Whether the same build would end the same way, rather than depend on time or the machine."""
    if done.status is None:
        return True
    return done.status is Status.COMPILE_ERROR and not any(word in done.log for word in TRANSIENT)


def _to_entry(done: Build) -> bytes:
    resources = [each.to_json() for each in done.resources]
    head = {"status": done.status, "log": done.log, "resources": resources}
    return json.dumps(head).encode() + b"\n" + done.archive


def _from_entry(entry: bytes) -> Build:
    head, _, archive = entry.partition(b"\n")
    said = json.loads(head)
    return Build(
        seconds=0.0,
        archive=archive,
        status=Status(said["status"]) if said["status"] else None,
        log=said["log"],
        resources=tuple(map(FunctionResources.from_json, said["resources"])),
    )


@contextmanager
def scratch_folder(problem: Problem, kernel: Kernel, root: Path, archive: bytes = b"") -> Iterator[Path]:
    """Creates the kernel's scratch folder for the duration of the block, with its source and the files of a
    build. Build and measurement use the same path, because toolchains store paths. A kernel has one folder
    per problem, shared by all cases of the problem."""
    scratch = root / content_id("scratch", problem.case_of or problem.id, kernel.id)
    remove(scratch)
    scratch.mkdir(parents=True, mode=0o700)
    try:
        if archive:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(scratch, filter="data")
        (scratch / SOURCE).write_text(as_utf8(kernel.source), encoding="utf-8")
        yield scratch
    finally:
        remove(scratch)


def runner_spec(
    scratch: Path, *, role: str, cpu_s: int, environment: dict[str, str], **more: Any
) -> dict[str, Any]:
    """The specification from which a fork server forks a runner.

    Args:
        role: `candidate`, `eager` or `compiled`.
        more: the `devices` that it may use (a build uses none, or it would disturb measurements), the `cores`
            if it may not use all, the `niceness` with which it yields to others, and whether it `poisons` its
            free memory before it is asked for anything.
    """
    return {
        "role": role,
        "scratch": str(scratch),
        "readable": [],
        "devices": [],
        "cores": [],
        "niceness": 0,
        "poisons": False,
        "environment": environment,
        "cpu_s": cpu_s,
        "max_processes": MAX_PROCESSES,
        **more,
    }


def build_environment(architecture: str) -> dict[str, str]:
    """The variables on which build flags depend. The runner needs the same ones, or it would build again."""
    return {"TORCH_CUDA_ARCH_LIST": architecture, **build_variables(architecture)} if architecture else {}


def _thread_fork_server(root: Path) -> ForkServer:
    """This thread's fork server: it is not thread-safe, and the first takes seconds to start. Restarted if it
    has died, for example for lack of memory."""
    if _thread.fork_server is not None and not _thread.fork_server.is_alive():
        _drop_fork_server()
    if _thread.fork_server is None:
        _thread.fork_server, node_fork_server = new_fork_server(root)
        _thread.node_fork_server = node_fork_server or _thread.node_fork_server
    return _thread.fork_server


def close_thread_fork_server() -> None:
    """Ends this thread's fork server, if any, and the node's fork server if this thread started it."""
    _drop_fork_server()
    if _thread.node_fork_server is not None:
        _thread.node_fork_server.close()
        _thread.node_fork_server = None


def _drop_fork_server() -> None:
    if _thread.fork_server is not None:
        _thread.fork_server.close()
        _thread.fork_server = None


def _pack(scratch: Path) -> bytes:
    """An archive of the regular files, without the kernel's source, up to MAX_ARCHIVE_BYTES. The candidate
    could write anything into the folder."""
    buffer = io.BytesIO()
    total = 0
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder, _, names in os.walk(scratch):
            for name in names:
                path = Path(folder) / name
                place = path.relative_to(scratch)
                if place.parts[0] == SOURCE or path.is_symlink() or not path.is_file():
                    continue
                total += path.stat().st_size
                if total > MAX_ARCHIVE_BYTES:
                    return buffer.getvalue()
                with contextlib.suppress(OSError):  # a file that we may not read
                    tar.add(path, arcname=str(place), recursive=False)
    return buffer.getvalue()
