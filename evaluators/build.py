"""Builds candidates on CPU cores: imports the kernel in the sandbox, so that it compiles what it compiles at
import (and Triton's kernels, see `warmup.py`), and keeps the scratch folder with the results. A build never
holds a GPU.

The scratch folder's path depends on the kernel and the pool alone: build systems write absolute paths into
what they make, and find it fresh again when the runner imports the kernel at the same place.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluators import sandbox
from evaluators.channel import ChannelClosed, ChannelTimeout, ProtocolError, printable
from evaluators.evaluation import Status
from evaluators.problem import Kernel, Problem
from evaluators.zygote import Zygote

MAX_PROCESSES = 4096
MAX_ARCHIVE_BYTES = 512 * 2**20

_kept = threading.local()


@dataclass(frozen=True, kw_only=True)
class Build:
    """What came of a build: `archive` (a tar of the scratch folder) when it worked, else status and log."""

    seconds: float
    archive: bytes = b""
    status: Status | None = None
    log: str = ""


def build(problem: Problem, kernel: Kernel, *, root: Path, architecture: str, timeout_s: float) -> Build:
    """Builds for a GPU `architecture` ("9.0"; "" for a CPU) within `timeout_s`. Never raises for the kernel's
    own failure; ChannelClosed when the builder itself broke."""
    try:
        return _build(_thread_zygote(), problem, kernel, root, architecture, timeout_s)
    except (ChannelClosed, ChannelTimeout) as error:
        close_thread_zygote()  # the next build starts another
        raise ChannelClosed(f"the builder's zygote is gone: {error}") from error


def _build(
    zygote: Zygote, problem: Problem, kernel: Kernel, root: Path, architecture: str, timeout_s: float
) -> Build:
    start = time.monotonic()
    with scratch_folder(kernel, root) as scratch:
        environment = {"CUDA_VISIBLE_DEVICES": ""}
        if architecture:
            environment["TORCH_CUDA_ARCH_LIST"] = architecture
        ward = zygote.fork(
            runner_spec(scratch, role="candidate", cpu_s=int(timeout_s) * 4, environment=environment)
        )
        status: Status | None = None
        log = ""
        try:
            ward.channel.receive(timeout_s)
            ward.channel.send({"op": "import", "problem": asdict(problem), "architecture": architecture})
            answer = ward.channel.receive(timeout_s)
            if answer.get("op") != "imported":
                status, log = Status.COMPILE_ERROR, printable(answer.get("error", ""))
        except ChannelTimeout:
            status, log = Status.TIMEOUT, f"the build took longer than {timeout_s:g} s"
        except ProtocolError as error:
            status, log = Status.COMPILE_ERROR, f"the build broke the protocol: {error}"
        except ChannelClosed:
            status, log = Status.CRASHED, f"the build process died\n{ward.output()}"
        finally:
            zygote.end(ward)
        archive = _pack(scratch) if status is None else b""
        return Build(seconds=time.monotonic() - start, archive=archive, status=status, log=log)


@contextmanager
def scratch_folder(kernel: Kernel, root: Path, archive: bytes = b"") -> Iterator[Path]:
    """The kernel's scratch folder, made for the time of the block: its source, and what a build left."""
    scratch = root / kernel.id
    _remove(scratch)
    scratch.mkdir(parents=True, mode=0o700)
    try:
        if archive:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(scratch, filter="data")
        (scratch / "kernel.py").write_text(kernel.source)
        yield scratch
    finally:
        _remove(scratch)


def runner_spec(
    scratch: Path, *, role: str, cpu_s: int, environment: dict[str, str], **more: Any
) -> dict[str, Any]:
    """What a zygote needs to fork a runner. `role`: `candidate`, `eager` or `compiled`."""
    return {
        "role": role,
        "scratch": str(scratch),
        "module": str(scratch / "kernel.py"),
        "readable": [],
        "environment": environment,
        "cpu_s": cpu_s,
        "max_processes": MAX_PROCESSES,
        **more,
    }


def build_environment(architecture: str) -> dict[str, str]:
    """The variables on which build flags depend: the runner needs the same, or it would build again."""
    return {"TORCH_CUDA_ARCH_LIST": architecture} if architecture else {}


def _thread_zygote() -> Zygote:
    """One a thread, kept: a zygote takes seconds to start and is not thread-safe."""
    if not hasattr(_kept, "zygote"):
        _kept.zygote = Zygote(sandbox.clean_environment())
    zygote: Zygote = _kept.zygote
    return zygote


def close_thread_zygote() -> None:
    """Ends this thread's zygote, if it has one."""
    if hasattr(_kept, "zygote"):
        _kept.zygote.close()
        del _kept.zygote


def _remove(scratch: Path) -> None:
    """Also folders that the candidate has closed to us."""
    for folder, below, _ in os.walk(scratch):
        for each in (Path(folder) / name for name in below):
            if not each.is_symlink():
                each.chmod(0o700)
    shutil.rmtree(scratch, ignore_errors=True)


def _pack(scratch: Path) -> bytes:
    """Regular files only, and no more than MAX_ARCHIVE_BYTES: the folder was in the candidate's hands."""
    buffer = io.BytesIO()
    total = 0
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder, _, names in os.walk(scratch):
            for name in names:
                path = Path(folder) / name
                if path.is_symlink() or not path.is_file():
                    continue
                total += path.stat().st_size
                if total > MAX_ARCHIVE_BYTES:
                    return buffer.getvalue()
                with contextlib.suppress(OSError):  # a file that the candidate has closed to us
                    tar.add(path, arcname=str(path.relative_to(scratch)), recursive=False)
    return buffer.getvalue()
