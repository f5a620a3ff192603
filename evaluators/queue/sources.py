"""Where a worker's requests come from and its verdicts go: a shared folder, or an archive and a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evaluators.base.jsonl_store import append_line, whole_lines
from evaluators.queue.leases import Lease, Leases
from evaluators.queue.queue_folder import PendingRequest, QueueFolder
from evaluators.queue.requests import BadRequest, DeviceRequest
from evaluators.queue.turns import Turns, is_opening
from evaluators.queue.verdicts import DeviceVerdict

logger = logging.getLogger(__name__)

Accepts = Callable[[DeviceRequest], bool]


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A request that this worker carries out. `failures`: the number of workers that tried before and could
    not, or died."""

    request: DeviceRequest
    failures: int = 0
    lease: Lease | None = None


class RequestSource(Protocol):
    """Gives requests to one worker, and takes its verdicts.

    Attributes:
        ends: Whether no further requests will come.
    """

    ends: bool

    def take(self, serves: Accepts, ready: Accepts) -> Claimed | None:
        """The next request of those that this worker `serves`; None if there is none, or if the worker is not
        `ready` for the one whose turn it is. Raises OSError."""
        ...

    def beat(self, claimed: Iterable[Claimed]) -> None:
        """Shows that these requests are being carried out."""
        ...

    def answer(self, claimed: Claimed, verdict: DeviceVerdict) -> None:
        """Stores a verdict at once. Raises OSError; the verdict can then be stored later."""
        ...

    def give_back(self, claimed: Claimed, *, failed: bool) -> None:
        """Leaves the request to others; `failed`: this worker could not carry it out. Raises OSError."""
        ...


class FolderSource:
    """The requests of a queue's folder, the searches in turn."""

    ends = False

    def __init__(self, folder: QueueFolder, leases: Leases) -> None:
        self._folder, self._leases = folder, leases
        self._turns = Turns()
        self._read: dict[str, DeviceRequest | None] = {}
        """The pending requests by id; None for one that cannot be read."""
        self._failed: set[str] = set()
        """The requests that this worker could not carry out: others come first, if there are any."""

    def take(self, serves: Accepts, ready: Accepts) -> Claimed | None:
        """See `RequestSource`."""
        generations = self._leases.generations()
        waiting: dict[str, list[DeviceRequest]] = {}
        for request in filter(serves, self._known()):
            waiting.setdefault(request.search, []).append(request)
        for line in waiting.values():
            line.sort(key=lambda each: (each.id in self._failed, not is_opening(each)))
        while waiting:
            search = self._turns.next(waiting)
            for request in waiting.pop(search):
                generation = generations.get(request.id, 0)
                if not self._leases.may_claim(request.id, generation):
                    continue
                if not ready(request):
                    return None
                lease = self._leases.claim(request.id, generation)
                if lease is not None and self._still_pending(request):
                    self._turns.charge(search, request.cost_s)
                    return Claimed(request=request, failures=lease.failures, lease=lease)
        return None

    def beat(self, claimed: Iterable[Claimed]) -> None:
        """See `RequestSource`."""
        for each in claimed:
            if each.lease is not None:
                self._leases.beat(each.lease)

    def answer(self, claimed: Claimed, verdict: DeviceVerdict) -> None:
        """See `RequestSource`."""
        if not self._folder.answer(claimed.request.search, verdict):
            logger.info("request %s had a verdict already", verdict.request)
        self._leases.clear(verdict.request)

    def give_back(self, claimed: Claimed, *, failed: bool) -> None:
        """See `RequestSource`."""
        if failed:
            self._failed.add(claimed.request.id)
        if claimed.lease is not None:
            self._leases.give_back(claimed.lease, failed=failed)

    def _known(self) -> list[DeviceRequest]:
        """The pending requests that can be read, the oldest first."""
        pending = self._folder.pending()
        known = self._read
        self._read = {each.id: known[each.id] if each.id in known else self._open(each) for each in pending}
        return [request for request in self._read.values() if request is not None]

    def _open(self, pending: PendingRequest) -> DeviceRequest | None:
        try:
            return self._folder.read(pending)
        except BadRequest as error:
            logger.warning("%s; it is left where it is", error)
        except FileNotFoundError:  # answered meanwhile
            pass
        return None

    def _still_pending(self, request: DeviceRequest) -> bool:
        """Whether the claimed request has no verdict yet. Another worker may have answered it between the
        listing and the claim."""
        if request.id not in self._folder.answered(request.search):
            return True
        self._folder.remove(request.search, request.id)
        self._leases.clear(request.id)
        return False


class ArchiveSource:
    """The requests of an archive, in its order, without those that do not fit into the time that is left.
    Verdicts are lines of a file; a second call with the same file continues after them."""

    ends = True

    def __init__(self, requests: Iterable[DeviceRequest], out: Path) -> None:
        self._out = out
        lines = whole_lines(out.read_bytes()) if out.exists() else []
        done = {each.get("request") for each in lines if "seal" in each}
        self._left = [each for each in requests if each.id not in done]
        self._failures: dict[str, int] = {}

    def take(self, serves: Accepts, ready: Accepts) -> Claimed | None:
        """See `RequestSource`."""
        for request in filter(serves, self._left):
            if ready(request):
                self._left.remove(request)
                return Claimed(request=request, failures=self._failures.get(request.id, 0))
        return None

    def beat(self, claimed: Iterable[Claimed]) -> None:
        """Does nothing: nobody else has the archive's requests."""

    def answer(self, claimed: Claimed, verdict: DeviceVerdict) -> None:
        """See `RequestSource`."""
        append_line(self._out, verdict.text)

    def give_back(self, claimed: Claimed, *, failed: bool) -> None:
        """See `RequestSource`. The request comes last."""
        if failed:
            self._failures[claimed.request.id] = claimed.failures + 1
        self._left.append(claimed.request)
