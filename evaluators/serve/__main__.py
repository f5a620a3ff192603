"""Carries out the device operations that searches on other machines request through a folder:

    python -m evaluators.serve folder=/shared/queue
    python -m evaluators.serve folder=/shared/queue devices=0,1 seconds=540
    python -m evaluators.serve archive=in.tar out=out.jsonl seconds=540

With http=127.0.0.1:8000 it serves rewards for training instead, like `ideatree rewards`.

Any number of workers may serve a folder. Each verdict is stored as soon as it is made; what a worker leaves
unfinished is carried out by another. SIGTERM and Ctrl-C end a worker cleanly. It needs neither Ray nor Hydra
nor W&B.

    folder=PATH       the queue's folder
    archive=FILE      instead of a folder: requests that `ideatree queue pack` packed
    out=FILE          with archive: the file for the verdicts; a second call continues after them
    device=auto       auto | cuda | cpu; auto: a GPU if torch finds one
    devices=0,1       the GPUs to use, as for CUDA_VISIBLE_DEVICES (default: all)
    seconds=540       seconds after which the worker ends (default: no limit)
    idle=60           seconds without any request after which it ends (default: no limit)
    trusted=false     serve a folder although others can write to it
    isolation=limits  least isolation of kernels: limits | landlock | seccomp | namespaces; a request may
                      ask for more

Exit status 0: it ended at a limit, at a signal or at the archive's end; 1: several requests in a row failed,
probably because of this machine; 2: the call was wrong.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from evaluators.base.nearest import near
from evaluators.base.usage_error import UsageError
from evaluators.device.settings import Settings
from evaluators.isolation import confinement
from evaluators.profiling.profiler import KernelProfiler
from evaluators.queue.archive import packed
from evaluators.queue.leases import Leases
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.serving import DeviceIdentity, QueueWorker, WorkerAtFault
from evaluators.queue.sources import ArchiveSource, FolderSource, RequestSource
from evaluators.records.problem import DEVICES
from evaluators.scheduler.local_host import LocalHost, visible_gpus
from evaluators.scheduler.pool import Pool
from evaluators.system.author_facts import cpu_name
from evaluators.system.cuda_driver import first_gpu


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The keys of the command, see above."""

    folder: str = ""
    archive: str = ""
    out: str = ""
    device: str = "auto"
    devices: str = ""
    seconds: float | None = None
    idle: float | None = None
    trusted: bool = False
    isolation: str = confinement.LEVELS[0]

    def __post_init__(self) -> None:
        if bool(self.folder) == bool(self.archive):
            raise UsageError("give folder=… or archive=…, and not both")
        if bool(self.archive) != bool(self.out):
            raise UsageError("archive=… and out=… belong together")
        for name, allowed in (("device", ("auto", *DEVICES)), ("isolation", confinement.LEVELS)):
            if (value := getattr(self, name)) not in allowed:
                raise UsageError(
                    f"{name} is {value}; it must be one of {', '.join(allowed)}{near(value, allowed)}"
                )
        for name in ("seconds", "idle"):
            if (limit := getattr(self, name)) is not None and not limit > 0:
                raise UsageError(f"{name} is {limit:g}; it must be positive")


def options(arguments: Sequence[str]) -> ServeOptions:
    """The options in `key=value` arguments. Raises UsageError."""
    known = [each.name for each in fields(ServeOptions)]
    found: dict[str, str | float | bool] = {}
    for each in arguments:
        name, equals, value = each.partition("=")
        if name not in known or not equals:
            raise UsageError(f"unknown argument {each}{near(name, known)}; the keys are {', '.join(known)}")
        if name in ("seconds", "idle"):
            found[name] = _number(name, value)
        elif name == "trusted":
            if value not in ("true", "false"):
                raise UsageError(f"trusted is {value}; it must be true or false")
            found[name] = value == "true"
        else:
            found[name] = value
    return ServeOptions(**found)  # type: ignore[arg-type]


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise UsageError(f"{name} is {value}; it must be a number of seconds") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(each.startswith("http=") for each in given):
        from evaluators.rewards.__main__ import main as serve_rewards

        return serve_rewards(given)
    if "--help" in given or "-h" in given:
        print(__doc__)  # noqa: T201
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("evaluators.isolation").setLevel(logging.INFO)
    try:
        return asyncio.run(serve(options(given)))
    except UsageError as error:
        print(f"evaluators.serve: {error}", file=sys.stderr)  # noqa: T201
        return 2


async def serve(chosen: ServeOptions) -> int:
    """Serves as chosen; returns the exit status. Raises UsageError."""
    if chosen.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = chosen.devices
    name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    source = _source(chosen, name)
    identity, lanes = _identity(chosen, name)
    on_gpu = identity.device == "cuda"
    gpus = visible_gpus() if on_gpu else [""]
    worker = QueueWorker(
        source,
        identity,
        lambda settings: Pool(LocalHost(settings=confined(settings, chosen.isolation), on_gpu=on_gpu)),
        at_once=lanes,
        seconds=chosen.seconds,
        idle_s=chosen.idle,
        make_profiler=lambda settings, number: KernelProfiler(
            confined(settings, chosen.isolation), visible_gpu=gpus[number]
        ),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, worker.stop)
    _say(f"{name} serves {chosen.folder or chosen.archive} with {identity.kind}")
    try:
        await worker.run()
    except WorkerAtFault as error:
        _say(f"{name} ends: {error}")
        return 1
    finally:
        _say(f"{name} stored {worker.answered} verdict{'s' * (worker.answered != 1)}")
    return 0


def confined(settings: Settings, least: str) -> Settings:
    """A request's settings, with at least this isolation."""
    level = max(settings.isolation, least, key=confinement.LEVELS.index)
    return replace(settings, isolation=level)


def _source(chosen: ServeOptions, name: str) -> RequestSource:
    if chosen.archive:
        out = Path(chosen.out)
        if not out.absolute().parent.is_dir():
            raise UsageError(f"out={out}: there is no folder {out.parent}")
        return ArchiveSource(packed(Path(chosen.archive)), out)
    folder = QueueFolder(Path(chosen.folder), trusted=chosen.trusted)
    return FolderSource(folder, Leases(folder.leases, name))


def _identity(chosen: ServeOptions, name: str) -> tuple[DeviceIdentity, int]:
    """The worker's identity, and the number of requests to work on at a time. Raises UsageError."""
    if chosen.device == "cpu" or not _has_gpu():
        if chosen.device == "cuda":
            raise UsageError("device is cuda, but torch finds no GPU here; use device=cpu or device=auto")
        return DeviceIdentity(worker=name, device="cpu", kind=cpu_name()), 2
    try:
        kind = first_gpu(confinement.clean_environment()).name
    except OSError as error:
        raise UsageError(str(error)) from error
    lanes = len(visible_gpus()) + len(os.sched_getaffinity(0))
    return DeviceIdentity(worker=name, device="cuda", kind=kind), lanes


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
