"""Builds candidates on CPU cores: imports the kernel in the sandbox, so that it compiles what it compiles at
import (see `thin_headers.py`, and `triton_precompile.py` for Triton), and keeps the scratch folder with the
results. A build never holds a GPU.

The scratch folder's path depends on the kernel and the pool alone: build systems write absolute paths into
what they make, and find it fresh again when the runner imports the kernel at the same place.
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

from evaluators.build.build_cache import BuildCache, build_key
from evaluators.isolation.scratch import SOURCE, remove, too_much_written
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel, Problem, content_id
from evaluators.runner.fork_server import ChildProcess, ForkServer
from evaluators.runner.messages import Import
from evaluators.runner.node_fork_server import NodeForkServer, hatch
from evaluators.system import process_tree
from evaluators.system.channel import ChannelClosed, ChannelTimeout, Message, ProtocolError, printable
from evaluators.system.deadline import Deadline

MAX_PROCESSES = 4096
MAX_BUILD_PROCESSES = 256
MAX_MEMORY_BYTES = 16 * 2**30
MAX_SCRATCH_BYTES = 2 * 2**30
MAX_ARCHIVE_BYTES = 512 * 2**20
JOBS = 2
"""Compilers at a time in one build: the halves of an extension. There is a build for each core already."""
NICENESS = 19
"""Builds for a GPU give way to the processes of a measurement, which must wake up at once. On a CPU nothing
is measured meanwhile: a build that gave way there would wait for other people's processes."""
WATCH_S = 0.05
TRANSIENT = (
    "Errno",
    "No space left",
    "Cannot allocate memory",
    "MemoryError",
    "Killed",
    "terminated program",
)
"""Words of a failure that may have been the machine's: not to be remembered."""


class _Kept(threading.local):
    """What a thread keeps from build to build."""

    fork_server: ForkServer | None = None
    node_fork_server: NodeForkServer | None = None
    """Where this thread has started it."""


_kept = _Kept()


@dataclass(frozen=True, kw_only=True)
class Build:
    """What came of a build: `archive` (a tar of the scratch folder) when it worked, else status and log."""

    seconds: float
    archive: bytes = b""
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
    """Builds for a GPU `architecture` ("9.0"; "" for a CPU) within `timeout_s`, or finds the result in the
    `cache`. Never raises for the kernel's own failure; ChannelClosed when the builder itself broke."""
    start = time.monotonic()
    key = build_key(problem, kernel, architecture) if cache else ""
    if cache and (entry := cache.get(key)):
        return replace(_from_entry(entry), seconds=time.monotonic() - start)
    try:
        done = _build(_thread_fork_server(root), problem, kernel, root, architecture, timeout_s)
    except (ChannelClosed, ChannelTimeout) as error:
        _drop_fork_server()  # the next build gets another
        raise ChannelClosed(f"the builder's fork server is gone: {error}") from error
    if cache and _will_repeat(done):
        cache.put(key, _to_entry(done))
    return done


class _Failed(Exception):
    """A build that is over, with its status and log."""

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
        try:
            _await(fork_server, child, scratch, deadline)
            child.channel.send(Import(problem=problem, architecture=architecture).message())
            answer = _await(fork_server, child, scratch, deadline)
            if answer.get("op") != "imported":
                status, log = Status.COMPILE_ERROR, printable(answer.get("error", ""))
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
        return Build(seconds=time.monotonic() - start, archive=archive, status=status, log=log)


def _await(fork_server: ForkServer, child: ChildProcess, scratch: Path, deadline: Deadline) -> Message:
    """What the build process says, while watching what it takes. Raises _Failed, and ChannelClosed when the
    fork server is gone."""
    while True:
        descriptors = [child.channel.fileno(), fork_server.channel.fileno()]
        ready, _, _ = select.select(descriptors, [], [], WATCH_S)
        try:
            return child.channel.receive(0.0)
        except ChannelTimeout:
            pass  # nothing yet, or half a message
        except ProtocolError as error:
            raise _Failed(Status.COMPILE_ERROR, f"the build broke the protocol: {error}") from error
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
    """Whether the same build would end the same way: not where time or the machine decided."""
    if done.status is None:
        return True
    return done.status is Status.COMPILE_ERROR and not any(word in done.log for word in TRANSIENT)


def _to_entry(done: Build) -> bytes:
    return json.dumps({"status": done.status, "log": done.log}).encode() + b"\n" + done.archive


def _from_entry(entry: bytes) -> Build:
    head, _, archive = entry.partition(b"\n")
    said = json.loads(head)
    return Build(
        seconds=0.0,
        archive=archive,
        status=Status(said["status"]) if said["status"] else None,
        log=said["log"],
    )


@contextmanager
def scratch_folder(problem: Problem, kernel: Kernel, root: Path, archive: bytes = b"") -> Iterator[Path]:
    """The kernel's scratch folder, made for the time of the block: its source, and what a build left. It is
    the same one for a build and a measurement, since toolchains remember paths; a kernel for several problems
    has several, but one for all cases of a problem."""
    scratch = root / content_id("scratch", problem.case_of or problem.id, kernel.id)
    remove(scratch)
    scratch.mkdir(parents=True, mode=0o700)
    try:
        if archive:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(scratch, filter="data")
        (scratch / SOURCE).write_text(kernel.source)
        yield scratch
    finally:
        remove(scratch)


def runner_spec(
    scratch: Path, *, role: str, cpu_s: int, environment: dict[str, str], **more: Any
) -> dict[str, Any]:
    """What a fork server needs to fork a runner. `role`: `candidate`, `eager` or `compiled`. `more` has the
    `devices` that it may use (a build has none, or it would disturb whoever is measured), the `cores`, where
    it may not have all, and the `niceness` by which it gives way to others."""
    return {
        "role": role,
        "scratch": str(scratch),
        "readable": [],
        "devices": [],
        "cores": [],
        "niceness": 0,
        "environment": environment,
        "cpu_s": cpu_s,
        "max_processes": MAX_PROCESSES,
        **more,
    }


def build_environment(architecture: str) -> dict[str, str]:
    """The variables on which build flags depend: the runner needs the same, or it would build again."""
    return {"TORCH_CUDA_ARCH_LIST": architecture} if architecture else {}


def _thread_fork_server(root: Path) -> ForkServer:
    """One a thread, kept: a fork server is not thread-safe, and the first one takes seconds to start. It is
    replaced when it has died since, say for lack of memory."""
    if _kept.fork_server is not None and not _kept.fork_server.is_alive():
        _drop_fork_server()
    if _kept.fork_server is None:
        _kept.fork_server, node_fork_server = hatch(root)
        _kept.node_fork_server = node_fork_server or _kept.node_fork_server
    return _kept.fork_server


def close_thread_fork_server() -> None:
    """Ends this thread's fork server, if it has one, and the node's that it has started."""
    _drop_fork_server()
    if _kept.node_fork_server is not None:
        _kept.node_fork_server.close()
        _kept.node_fork_server = None


def _drop_fork_server() -> None:
    if _kept.fork_server is not None:
        _kept.fork_server.close()
        _kept.fork_server = None


def _pack(scratch: Path) -> bytes:
    """Regular files only, not where the kernel's own source is to be, and no more than MAX_ARCHIVE_BYTES: the
    folder was in the candidate's hands."""
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
                with contextlib.suppress(OSError):  # a file that the candidate has closed to us
                    tar.add(path, arcname=str(place), recursive=False)
    return buffer.getvalue()
