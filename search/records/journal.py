"""The record of a run: an append-only file, one event a line, from which all state is replayed.

What is appended is with the operating system before anything else sees it: a killed process loses only
the work in flight. (The idea of optuna's `storages/journal/_file.py`.) The lines are `journal_codec`'s.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from search.records.events import Event, IdeaProposed
from search.records.journal_codec import Decoder, NewerFormatError, encode

logger = logging.getLogger(__name__)


class JournalError(ValueError):
    """A journal that cannot be read or written; the message says where and why."""


class Journal:
    """Appends events to the file at `path`, which is created, or continued after its last whole batch.

    `past` holds the events that were there. One process at a time: raises JournalError when another has
    the journal open, when a line before the last is corrupt, or when a newer program wrote the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            events, self._size = _read(path)
        except BlockingIOError:
            os.close(self._fd)
            raise JournalError(f"another process is running this search: {path} is locked") from None
        except JournalError:
            os.close(self._fd)
            raise
        os.ftruncate(self._fd, self._size)
        self.past: tuple[Event, ...] = tuple(events)

    def append(self, events: Iterable[Event]) -> None:
        """Writes a batch of events with one system call: after a crash it is there as a whole or not at all.

        Raises OSError when the disk does not take it; the journal is then as it was before.
        """
        data = b"".join(json.dumps(encode(event)).encode() + b"\n" for event in events)
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def sync(self) -> None:
        """Waits until the disk has what was appended: survives a power loss, not only a killed process."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Syncs, and lets another process have the journal."""
        self.sync()
        os.close(self._fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def replay(path: Path) -> list[Event]:
    """The events of a journal, oldest first; reads only, also while a search is writing.

    Left out with a warning: a torn last line, and the ideas of a last answer of which only a part is there.
    Raises JournalError naming the line for anything else that is not an event, and for a newer format.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[list[Event], int]:
    """The events of whole batches, and how many bytes of the file they take."""
    decoder = Decoder()
    events: list[Event] = []
    ends = [0]
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            data = _parse(line)
            if data is None and file.read(1):
                raise JournalError(f"{path}, line {number} is corrupt: {line[:60]!r}")
            if data is None:
                logger.warning("%s: line %d is torn and left out: %.60r", path, number, line)
                break
            try:
                events.append(decoder.decode(data))
            except NewerFormatError as error:
                raise JournalError(f"{path}: {error}") from None
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                found = f"{type(error).__name__}: {error}"
                raise JournalError(f"{path}, line {number}: not an event ({found}): {line[:60]!r}") from error
            ends.append(ends[-1] + len(line))
    partial = _partial_batch(events)
    if partial:
        logger.warning("%s: the last answer is there in part; its %d lines are left out", path, partial)
    whole = len(events) - partial
    return events[:whole], ends[whole]


def _parse(line: bytes) -> Any:
    """The line's JSON; None for a line without an end, or that is not JSON."""
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None


def _partial_batch(events: list[Event]) -> int:
    """How many events at the end belong to a batch that was not written to its end; 0 if there is none."""
    last = events[-1] if events else None
    if not isinstance(last, IdeaProposed):
        return 0
    there = 0
    for event in reversed(events):
        if not isinstance(event, IdeaProposed) or _answer_of(event) != _answer_of(last):
            break
        there += 1
    return there if there < last.of else 0


def _answer_of(event: IdeaProposed) -> tuple[int, int]:
    return event.idea.round, event.expansion
