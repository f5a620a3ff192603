"""The record of a run: an append-only file with one event per line, from which all state is replayed.

Each event is handed to the operating system before any other part sees it, so a killed process loses only the
work in flight. (After optuna's `storages/journal/_file.py`.) `journal_codec` defines the format of a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from evaluators.base.cause import printable
from evaluators.base.json_record import require_types
from search.records.events import Event, IdeaProposed, RunStarted
from search.records.journal_codec import Decoder, NewerFormatError, encode
from search.records.run_state import RunState, rebuild

logger = logging.getLogger(__name__)


JOURNAL = "journal.jsonl"
"""A journal's name in the folder of its run."""
DEEPEST = 4
"""How many folders below one are looked through for runs: a problem's name and the time."""


def newest_run_below(folder: Path) -> str:
    """The end of a message that a folder has no run: which one below it has the newest; "" if none has."""
    found = [each for depth in range(1, DEEPEST + 1) for each in folder.glob(f"{'*/' * depth}{JOURNAL}")]
    return f"; the newest run below it is {max(found, key=_changed).parent}" if found else ""


def _changed(path: Path) -> float:
    return path.stat().st_mtime


class JournalError(ValueError):
    """A journal cannot be read or written; the message says where and why."""


class Journal:
    """Appends events to a file, which is created, or continued after its last complete batch.

    Only one process at a time can have a journal open.

    Attributes:
        path: The journal's file.
        past: The events that the file had when it was opened.

    Raises:
        JournalError: If another process has the journal open, a line before the last is corrupt, or a newer
            version of Ideatree wrote the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            events, self._size = _read(path)
        except BlockingIOError:
            os.close(self._fd)
            what = "another process is running this search"
            raise JournalError(f"{what}: {path} is locked; end it first") from None
        except JournalError:
            os.close(self._fd)
            raise
        os.ftruncate(self._fd, self._size)
        self.past: tuple[Event, ...] = tuple(events)

    def append(self, events: Iterable[Event]) -> None:
        """Writes a batch of events with one system call: after a crash, all of the batch is there or none of
        it.

        Raises:
            OSError: If the disk does not accept it; the journal is then unchanged.
        """
        data = b"".join(json.dumps(encode(event)).encode() + b"\n" for event in events)
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):  # a half line would be left out when it is read
                os.ftruncate(self._fd, self._size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._size += len(data)

    def sync(self) -> None:
        """Waits until the disk has the events, so that they survive a power loss too."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Syncs and releases the journal."""
        self.sync()
        os.close(self._fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def replay(path: Path) -> list[Event]:
    """Reads the events of a journal, oldest first; also works while a search is writing it.

    A torn last line, and the ideas of an incomplete last answer, are left out with a warning.

    Raises:
        JournalError: If any other line is not an event, or a newer version of Ideatree wrote the file.
    """
    return _read(path)[0]


def recorded_state(folder: str | Path) -> RunState:
    """The state of the run in a folder. Raises OSError, and JournalError as `replay` does."""
    return rebuild(replay(Path(folder) / JOURNAL))


def _read(path: Path) -> tuple[list[Event], int]:
    """The events of complete batches, and the number of bytes that they take in the file."""
    decoder, state = Decoder(), RunState()
    events: list[Event] = []
    ends = [0]
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            data = _parse(line)
            if data is None and file.read(1):
                raise JournalError(f"{path}, line {number} is corrupt: {line[:60]!r}")
            if data is None:
                logger.warning("%s: left out line %d, which is incomplete: %.60r", path, number, line)
                break
            try:
                event = decoder.decode(data)
                require_types(event)
                _require_start(state, event)
                state.apply(event)
            except NewerFormatError as error:
                raise JournalError(f"{path}: {error}") from None
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                found = printable(f"{type(error).__name__}: {error}")
                what = "not an event, or one that another must precede"
                raise JournalError(f"{path}, line {number}: {what} ({found}): {line[:60]!r}") from error
            events.append(event)
            ends.append(ends[-1] + len(line))
    partial = _partial_batch(events)
    if partial:
        logger.warning("%s: left out the last answer, of which only %d lines are there", path, partial)
    whole = len(events) - partial
    return events[:whole], ends[whole]


def _require_start(state: RunState, event: Event) -> None:
    """Raises ValueError for an event before the first start."""
    if state.started is None and not isinstance(event, RunStarted):
        raise ValueError("the journal does not begin with run_started")


def _parse(line: bytes) -> Any:
    """The line's JSON; None for a line without a line end or with invalid JSON."""
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None


def _partial_batch(events: list[Event]) -> int:
    """The number of events at the end that belong to an incomplete batch."""
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
