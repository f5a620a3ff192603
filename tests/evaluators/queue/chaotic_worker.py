"""A worker of a queue with a fake device, on a disk that is often full:

python -m tests.evaluators.queue.chaotic_worker FOLDER NAME LEASE_S
"""

from __future__ import annotations

import asyncio
import errno
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.queue import leases, queue_folder, serving
from evaluators.queue.leases import Leases
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.serving import DeviceIdentity, QueueWorker
from evaluators.queue.sources import FolderSource
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import FakeHost

FULL = 0.2
"""The share of writes for which the disk has no room."""


class LoggingHost(FakeHost):
    """Appends each kernel that it measures to a file."""

    def __init__(self, log: Path) -> None:
        super().__init__(work_s=0.01)
        self._log = log

    async def measure(self, device: int, problem: Any, kernel: Kernel, *rest: Any) -> Evaluation:
        found = await super().measure(device, problem, kernel, *rest)
        with self._log.open("a") as file:
            file.write(f"{kernel.id}\n")
        return replace(found, log=kernel.id)


def often_full(write: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(path: Path, text: str) -> Any:
        if random.random() < FULL:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, text)

    return wrapped


def main(folder: str, name: str, lease_s: str) -> None:
    queue = QueueFolder(Path(folder))
    serving.BEAT_EVERY_S = float(lease_s) / 10
    for module in (queue_folder, leases):
        module.write_if_new = often_full(module.write_if_new)  # type: ignore[attr-defined]
    leases.write_atomically = often_full(leases.write_atomically)  # type: ignore[attr-defined]
    source = FolderSource(queue, Leases(queue.leases, name, lease_s=float(lease_s)))
    identity = DeviceIdentity(worker=name, device="cuda", kind="fake")
    host = LoggingHost(Path(folder) / f"{name}.log")

    async def serve() -> None:
        worker = QueueWorker(source, identity, lambda settings: Pool(host), at_once=2, look_every_s=0.02)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
