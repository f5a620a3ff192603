"""A queue's requests as one file, for machines that do not share the folder, and their verdicts back.

An archive is a tar file with a member `<id>.json` for each request, in the order in which they are to be
carried out. Nothing is ever unpacked to a path that an archive names.
"""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluators.base.usage_error import UsageError
from evaluators.queue.leases import Leases
from evaluators.queue.queue_folder import PendingRequest, QueueFolder, require_fit
from evaluators.queue.requests import BadRequest, DeviceRequest, UnknownOperation
from evaluators.queue.turns import in_turn
from evaluators.queue.verdicts import BadVerdict, DeviceVerdict

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20
"""The largest request that is read from an archive."""


@dataclass(frozen=True, kw_only=True)
class PendingRequests:
    """The pending requests of a queue, those that cannot be read, with the reason in one line each, and the
    ids of those that a worker holds."""

    requests: tuple[DeviceRequest, ...]
    unreadable: tuple[str, ...]
    held: frozenset[str]


def pending_requests(folder: QueueFolder) -> PendingRequests:
    """What waits in a queue, the oldest first. Raises OSError."""
    leases = Leases(folder.leases, "")
    held = (id for id, generation in leases.generations().items() if leases.is_held(id, generation))
    requests, unreadable = [], []
    for each in folder.pending():
        try:
            requests.append(folder.read(each))
        except BadRequest as error:
            unreadable.append(str(error))
        except FileNotFoundError:  # answered meanwhile
            pass
    return PendingRequests(requests=tuple(requests), unreadable=tuple(unreadable), held=frozenset(held))


def pack(requests: Iterable[DeviceRequest], path: Path) -> list[DeviceRequest]:
    """Writes the requests to an archive: the problems to open first, then the searches in turn. Returns them
    in this order. Raises OSError."""
    ordered = in_turn(list(requests))
    part = path.with_name(f".{path.name}.part")
    with tarfile.open(part, "w") as archive:
        for each in ordered:
            data = each.text.encode()
            member = tarfile.TarInfo(f"{each.id}.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    part.replace(path)
    return ordered


def packed(path: Path) -> Iterator[DeviceRequest]:
    """The requests of an archive, without those of a newer version. Raises UsageError for a file that is no
    archive of unaltered requests."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() and member.size <= MOST_BYTES else None
                if file is None:
                    raise UsageError(f"{path}: {member.name!r:.100} is no request")
                try:
                    request = DeviceRequest.read(
                        file.read().decode(errors="replace"), member.name.removesuffix(".json")
                    )
                except UnknownOperation as error:
                    logger.warning("%s; it is left to others", error)
                else:
                    yield request
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, BadRequest) as error:
        raise UsageError(f"{path}: {error}") from error


@dataclass(kw_only=True)
class ImportedVerdicts:
    """What became of verdicts: how many were `stored`, how many requests had one `already`, and a line about
    each that was refused."""

    stored: int
    already: int
    refused: list[str]


def import_verdicts(folder: QueueFolder, path: Path) -> ImportedVerdicts:
    """Stores the verdicts of a file, a line each, with their requests. A verdict is refused if it was
    altered, if it is on no request of this queue, or if its device is not the one that the request names.
    Raises UsageError if the file cannot be read, and OSError if the queue cannot be written."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    pending = {each.id: each for each in folder.pending()}
    found = ImportedVerdicts(stored=0, already=0, refused=[])
    for number, line in enumerate(lines, start=1):
        try:
            _import_one(folder, pending, DeviceVerdict.read(line), found)
        except (BadVerdict, BadRequest) as error:
            found.refused.append(f"line {number}: {error}")
    return found


def _import_one(
    folder: QueueFolder, pending: dict[str, PendingRequest], verdict: DeviceVerdict, found: ImportedVerdicts
) -> None:
    known = pending.get(verdict.request)
    if known is None and not folder.has_answered(verdict.request):
        raise BadVerdict(
            f"the verdict on request {verdict.request:.40} is foreign: this queue has no such request"
        )
    if known is None:
        found.already += 1
        return
    request = folder.read(known)
    require_fit(request, verdict)
    folder.answer(request.search, verdict)
    del pending[request.id]
    found.stored += 1
