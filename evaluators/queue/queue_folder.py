"""The files of a queue:

    requests/<search>/<id>.json     a request, until it has a verdict
    leases/<id>.<generation>        who works on it (see `leases.py`)
    verdicts/<search>/<id>.json     its verdict; the first one counts

Every file appears complete, by a rename or a link, which also works on NFS.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluators.base.atomic_write import write_if_new
from evaluators.base.usage_error import UsageError
from evaluators.queue.requests import SEARCH, DeviceRequest, Operation
from evaluators.queue.verdicts import BadVerdict, DeviceVerdict
from evaluators.records.race import answers

ROOMS = ("requests", "leases", "verdicts")
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, kw_only=True)
class PendingRequest:
    """A request's file: the request's id and search, and the file's time in ns, which only orders a
    listing."""

    id: str
    search: str
    written_ns: int


class QueueFolder:
    """A queue in a folder, which is made if it does not exist.

    Whoever can write there decides what workers run and which verdicts searches get. So a folder that others
    can write to is refused, unless it is `trusted`.

    Raises:
        UsageError: The folder cannot be used, or others can write to it.
    """

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path = path
        self._mode = 0o777 if trusted else 0o700
        self.requests, self.leases, self.verdicts = (path / each for each in ROOMS)
        try:
            for each in (path, self.requests, self.leases, self.verdicts):
                each.mkdir(parents=True, exist_ok=True, mode=self._mode)
                if not trusted and (why := _why_others_can_write(each)):
                    raise UsageError(
                        f"{each}: {why}, so others could choose what runs here; make it private "
                        "(chmod go-w), or set trusted=true (in a search: pool.trusted=true)"
                    )
        except OSError as error:
            raise UsageError(f"{path} cannot be used as a queue: {error.strerror}") from error

    def submit(self, request: DeviceRequest) -> None:
        """Adds a request, unless it is there already or has a verdict. Raises OSError."""
        if not self._verdict_of(request.search, request.id).exists():
            place = self._request_of(request.search, request.id)
            place.parent.mkdir(parents=True, exist_ok=True, mode=self._mode)
            write_if_new(place, request.text)

    def pending(self) -> list[PendingRequest]:
        """The requests without a verdict, the oldest first. Raises OSError."""
        found = [
            PendingRequest(id=_id_of(file), search=search, written_ns=file.stat().st_mtime_ns)
            for search in _searches(self.requests)
            for file in _files(self.requests / search)
        ]
        return sorted(found, key=lambda each: (each.written_ns, each.id))

    def read(self, pending: PendingRequest) -> DeviceRequest:
        """The request in a file. Raises BadRequest, FileNotFoundError if it has been answered, OSError."""
        text = self._request_of(pending.search, pending.id).read_text(encoding="utf-8", errors="replace")
        return DeviceRequest.read(text, pending.id)

    def answered(self, search: str) -> set[str]:
        """The ids of the requests of a search that have a verdict. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            return {each.removesuffix(".json") for each in os.listdir(self.verdicts / search)}
        return set()

    def has_answered(self, id: str) -> bool:
        """Whether a request of any search has a verdict. Raises OSError."""
        return any(id in self.answered(search) for search in _searches(self.verdicts))

    def verdict(self, request: DeviceRequest) -> DeviceVerdict:
        """The verdict on a request. Raises BadVerdict for one that was altered, or that does not fit it, and
        OSError."""
        path = self._verdict_of(request.search, request.id)
        verdict = DeviceVerdict.read(path.read_text(encoding="utf-8", errors="replace"))
        require_fit(request, verdict)
        return verdict

    def answer(self, search: str, verdict: DeviceVerdict) -> bool:
        """Stores a verdict and removes the request; returns False if there was a verdict already, which
        stays. Raises OSError."""
        place = self._verdict_of(search, verdict.request)
        place.parent.mkdir(parents=True, exist_ok=True, mode=self._mode)
        is_first = write_if_new(place, verdict.text)
        self.remove(search, verdict.request)
        return is_first

    def remove(self, search: str, id: str) -> None:
        """Removes a request, if it is there. Raises OSError."""
        self._request_of(search, id).unlink(missing_ok=True)

    def discard_verdict(self, request: DeviceRequest) -> None:
        """Removes a verdict that cannot be used, so that the request may be made again. Raises OSError."""
        self._verdict_of(request.search, request.id).unlink(missing_ok=True)

    def withdraw(self, search: str) -> None:
        """Removes all requests of a search. Raises OSError."""
        for file in _files(self.requests / search):
            self.remove(search, _id_of(file))

    def _request_of(self, search: str, id: str) -> Path:
        return self.requests / search / f"{id}.json"

    def _verdict_of(self, search: str, id: str) -> Path:
        return self.verdicts / search / f"{id}.json"


def require_fit(request: DeviceRequest, verdict: DeviceVerdict) -> None:
    """Raises BadVerdict, which names the request, if the verdict is not one on it."""
    by = f"the verdict on request {request.id} ({request.title}) by worker {verdict.worker:.100}"
    if verdict.request != request.id:
        raise BadVerdict(f"{by} is one on request {verdict.request:.40}")
    if request.kind and verdict.device != request.kind:
        raise BadVerdict(f"{by} comes from {verdict.device:.100}; the search is pinned to {request.kind}")
    if verdict.unfit:
        return
    operation, count = request.operation, len(verdict.evaluations)
    if operation.judges and count != len(request.kernels):
        raise BadVerdict(f"{by} has {count} evaluations for {len(request.kernels)} kernels")
    if not all(answers(each, request.threshold) for each in verdict.evaluations):
        raise BadVerdict(f"{by} has only a quick stage, although the request asks for more")
    found = {Operation.DIAGNOSE: verdict.diagnosis, Operation.PROBE: verdict.probe}
    if operation.examines and found[operation] is None and not verdict.broken:
        raise BadVerdict(f"{by} has no {'diagnosis' if operation is Operation.DIAGNOSE else 'result'}")


def _why_others_can_write(folder: Path) -> str:
    found = folder.stat()
    if found.st_uid not in (os.getuid(), 0):
        return "it belongs to another user"
    return "others may write to it" if found.st_mode & OTHERS_WRITE else ""


def _searches(room: Path) -> list[str]:
    return sorted(each for each in os.listdir(room) if SEARCH.fullmatch(each))


def _id_of(file: os.DirEntry[str]) -> str:
    return file.name.removesuffix(".json")


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for each in entries:
            if each.name.endswith(".json") and not each.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # answered meanwhile
                    each.stat()
                    yield each
