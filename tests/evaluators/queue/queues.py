"""Requests, and workers whose pools are fake hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.device.settings import Settings
from evaluators.queue.leases import Leases
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.requests import DeviceRequest, Operation, request_for
from evaluators.queue.serving import DeviceIdentity, QueueWorker
from evaluators.queue.sources import FolderSource, RequestSource
from evaluators.queue.verdicts import DeviceVerdict
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import CORRECT, ON_GPU, FakeHost, kernel

IDENTITY = DeviceIdentity(worker="node:1:a", device="cuda", kind="fake")
SETTINGS = Settings()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def request(name: object = "a", *, search: str = "one", **more: Any) -> DeviceRequest:
    usual = {"operation": Operation.EVALUATE, "problem": ON_GPU, "kernels": [kernel(name)]}
    return request_for(search=search, **{**usual, "settings": SETTINGS, "kind": "", "number": 0, **more})


def verdict_on(asked: DeviceRequest, *, device: str = "fake", log: str = "") -> DeviceVerdict:
    found = tuple(replace(CORRECT, log=log) for _ in asked.kernels)
    return DeviceVerdict(request=asked.id, worker="node:1:a", device=device, evaluations=found)


def source(folder: QueueFolder, *, worker: str = "node:1:a", clock: Clock | None = None) -> FolderSource:
    return FolderSource(folder, Leases(folder.leases, worker, **({"clock": clock} if clock else {})))


def served(requests: RequestSource, host: FakeHost, **options: Any) -> QueueWorker:
    """A worker that serves until there is nothing left."""
    options = {"at_once": 1, "idle_s": 0.05, "look_every_s": 0.01, **options}

    async def serve() -> QueueWorker:
        worker = QueueWorker(requests, IDENTITY, lambda settings: Pool(host), **options)
        await worker.run()
        return worker

    return asyncio.run(serve())


def filled(path: Path, requests: Sequence[DeviceRequest]) -> QueueFolder:
    folder = QueueFolder(path)
    for each in requests:
        folder.submit(each)
    return folder
