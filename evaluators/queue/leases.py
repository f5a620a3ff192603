"""Who works on which request, so that a worker that dies loses nothing and no two do the same work.

A lease is a file `<request>.<generation>`. Its holder counts up in it. A lease whose text has not changed for
a while, on the clock of the worker that watches it, has expired; the worker that creates the file of the next
generation takes over. No time stamp is compared, so the machines' clocks may differ.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from evaluators.base.atomic_write import write_atomically, write_if_new

logger = logging.getLogger(__name__)

LEASE_S = 60.0
"""Seconds without a beat after which a lease has expired."""
HELD, RELEASED, FAILED = "held", "released", "failed"


@dataclass(kw_only=True)
class Lease:
    """A worker's right to carry out a request. `failures`: the number of earlier holders that died, or could
    not carry it out."""

    request: str
    path: Path
    failures: int
    beats: int = field(default=0)


class Leases:
    """The leases in a folder, as one worker sees them.

    Args:
        folder: The folder of the leases.
        worker: The worker's name, for people who look into the files.
        lease_s: See `LEASE_S`.
        clock: Returns seconds from any origin.
    """

    def __init__(
        self,
        folder: Path,
        worker: str,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._worker, self._lease_s, self._clock = folder, worker, lease_s, clock
        self._seen: dict[Path, tuple[str, float]] = {}
        """The text of each lease of others, and since when it has been the same."""

    def generations(self) -> dict[str, int]:
        """The latest generation of each request that has one. Raises OSError."""
        found: dict[str, int] = {}
        for each in self._folder.iterdir():
            request, _, generation = each.name.partition(".")
            if request and generation.isdecimal():
                found[request] = max(found.get(request, 0), int(generation))
        return found

    def may_claim(self, request: str, generation: int) -> bool:
        """Whether nobody works on a request whose latest lease has this `generation` (0: none). Raises
        OSError."""
        return not generation or self._is_over(self._path(request, generation))

    def claim(self, request: str, generation: int) -> Lease | None:
        """A lease of a request that this worker may claim; None if another one was faster. Raises OSError."""
        earlier = (self._state(self._path(request, each)) for each in range(1, generation + 1))
        failures = sum(each not in (RELEASED, None) for each in earlier)
        lease = Lease(request=request, path=self._path(request, generation + 1), failures=failures)
        return lease if write_if_new(lease.path, self._text(lease, HELD)) else None

    def beat(self, lease: Lease) -> None:
        """Shows that the holder is alive. A full disk does not end the work: the lease may expire then, and
        the first verdict counts."""
        lease.beats += 1
        try:
            if lease.path.exists():  # otherwise another worker has answered the request
                write_atomically(lease.path, self._text(lease, HELD))
        except OSError as error:
            logger.warning("the lease of request %s could not be renewed: %s", lease.request, error)

    def give_back(self, lease: Lease, *, failed: bool) -> None:
        """Lets others have the request at once. Raises OSError."""
        if lease.path.exists():
            write_atomically(lease.path, self._text(lease, FAILED if failed else RELEASED))

    def clear(self, request: str) -> None:
        """Removes the leases of a request that needs none any more. Raises OSError."""
        for each in self._folder.glob(f"{request}.*"):
            each.unlink(missing_ok=True)

    def is_held(self, request: str, generation: int) -> bool:
        """Whether a worker has a lease, whether or not it is still alive. Raises OSError."""
        return bool(generation) and self._state(self._path(request, generation)) == HELD

    def _is_over(self, path: Path) -> bool:
        """Whether a lease was given back, or has not changed for too long."""
        state, text, now_s = self._state(path), _text_of(path), self._clock()
        if state in (RELEASED, FAILED):
            return True
        known, since_s = self._seen.get(path, ("", now_s))
        if path not in self._seen or known != text:
            self._seen[path] = (text, now_s)
            return False
        return now_s - since_s >= self._lease_s

    def _state(self, path: Path) -> str | None:
        """`HELD`, `RELEASED` or `FAILED`; None if there is no such lease."""
        text = _text_of(path)
        return next((each for each in (RELEASED, FAILED) if f'"{each}"' in text), HELD) if text else None

    def _path(self, request: str, generation: int) -> Path:
        return self._folder / f"{request}.{generation}"

    def _text(self, lease: Lease, state: str) -> str:
        return json.dumps({"state": state, "worker": self._worker, "beats": lease.beats}) + "\n"


def _text_of(path: Path) -> str:
    """The text of a file; "" if it is gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
