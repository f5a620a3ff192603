from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.engine.run_folder import summarise
from search.records.events import (
    Event,
    RoundClosed,
)
from search.records.journal import Journal, JournalError, replay
from search.records.journal_codec import FORMAT_VERSION, encode
from search.records.run_state import rebuild
from tests.search.fakes import contents, search, state_of
from tests.search.small_run import events_of_a_run


def written(path: Path, events: list[Event]) -> Path:
    with Journal(path) as journal:
        journal.append(events)
    return path


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    events = events_of_a_run()
    path = written(tmp_path / "journal.jsonl", events[:6])
    with Journal(path) as journal:
        assert list(journal.past) == events[:6]
        journal.append(events[6:])
    assert replay(path) == events


def test_a_batch_is_one_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    with Journal(tmp_path / "journal.jsonl") as journal:
        write = os.write

        def counted(fd: int, data: bytes) -> int:
            sizes.append(len(data))
            return write(fd, data)

        monkeypatch.setattr(os, "write", counted)
        journal.append(events_of_a_run())
    assert sizes == [journal.path.stat().st_size]


def test_a_failed_append_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = events_of_a_run()
    write = os.write

    def disk_full(fd: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(fd, data[:-50])

    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(events[:1])
        monkeypatch.setattr(os, "write", disk_full)
        with pytest.raises(OSError, match="No space"):
            journal.append(events[1:4])
        monkeypatch.undo()
        journal.append(events[1:4])
    assert replay(journal.path) == events[:4]


@pytest.mark.parametrize("tail", [b'{"event": "round_cl', b'{"event": "run_fi\n', b"\x00" * 40, b"{}"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture) -> None:
    events = events_of_a_run()
    path = written(tmp_path / "journal.jsonl", events)
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(tail)
    with caplog.at_level(logging.WARNING):
        assert replay(path) == events
    assert "left out line 9" in caplog.text
    with Journal(path) as journal:
        assert path.stat().st_size == whole
        journal.append([RoundClosed(at_s=9.0, round=1, best=None, evaluations=2)])
    assert len(replay(path)) == len(events) + 1


def test_a_torn_batch_is_cut_off_as_a_whole(tmp_path: Path) -> None:
    events = events_of_a_run()
    lines = [json.dumps(encode(event)) + "\n" for event in events]
    kept = {1: 1, 2: 1, 3: 1, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8}
    for lines_there, events_kept in kept.items():
        path = tmp_path / f"{lines_there}.jsonl"
        path.write_text("".join(lines[:lines_there]))
        assert replay(path) == events[:events_kept]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"garbage\n", "corrupt"),
        (b'{"event": "idea_pro\n', "corrupt"),
        (b"null\n", "corrupt"),
        (b"7\n", "not an event"),
        (b'{"event": "tea_served", "at_s": 1}\n', "tea_served"),
        (b'{"event": "round_closed", "at_s": 1}\n', "not an event"),
    ],
)
def test_a_corrupt_line_in_the_middle_is_an_error(tmp_path: Path, line: bytes, why: str) -> None:
    path = written(tmp_path / "journal.jsonl", events_of_a_run())
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = line
    path.write_bytes(b"".join(lines))
    for read in (replay, Journal):
        with pytest.raises(JournalError, match=f"line 5.*{why}"):
            read(path)


def test_a_changed_source_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", events_of_a_run())
    path.write_text(path.read_text().replace("class ModelNew: ...  # 1", "class ModelNew: ...  # 3"))
    with pytest.raises(JournalError, match=r"line 5.*id"):
        replay(path)


def test_two_cannot_append_to_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path):
        with pytest.raises(JournalError, match="another process is running this search"):
            Journal(path)
        replay(path)
    Journal(path).close()


def before_there_was_a_version(path: Path) -> list[str]:
    """Rewrites a journal as the program wrote it that knew no version; returns its lines."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.pop("version") for line in lines if line["event"] == "run_started"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path.read_text().splitlines()


def test_a_journal_without_a_version_is_replayed(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", events_of_a_run())
    before_there_was_a_version(path)
    assert replay(path) == events_of_a_run()


def test_a_journal_without_a_version_is_resumed(tmp_path: Path) -> None:
    """It keeps its lines, and ends as a run does that was not interrupted."""
    whole, path = tmp_path / "whole.jsonl", tmp_path / "journal.jsonl"
    finished = search(whole, rounds=3)
    search(path, rounds=1)
    lines = before_there_was_a_version(path)
    again = search(path, rounds=3)
    assert path.read_text().splitlines()[: len(lines)] == lines
    assert (again.reason, again.best, again.confirmed) == (finished.reason, finished.best, finished.confirmed)
    assert contents(state_of(path).tree) == contents(state_of(whole).tree)


def test_a_newer_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", events_of_a_run())
    version = f'"version": {FORMAT_VERSION}'
    path.write_text(path.read_text().replace(version, f'"version": {FORMAT_VERSION + 1}'))
    before = path.read_bytes()
    for read in (replay, Journal):
        with pytest.raises(JournalError) as refused:
            read(path)
        assert str(refused.value) == (
            f"{path}: the journal's format is version {FORMAT_VERSION + 1}, this program knows up to "
            f"{FORMAT_VERSION}; open it with the newer program that wrote it"
        )
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_large_journal_opens_soon(tmp_path: Path) -> None:
    """A tenth of the 10,000 variants that `benchmarks/engine_overhead.py` opens within 5 s; counted is CPU
    time."""
    path = tmp_path / "journal.jsonl"
    search(path, rounds=5, ideas=25, branch=8)
    began = time.process_time()
    with Journal(path) as journal:
        state = rebuild(journal.past)
    assert time.process_time() - began < 2.0
    assert len(state.tree.variants) == 1000


RECORDED = Path(__file__).parents[1] / "recordings" / "softmax_cpu" / "journal.jsonl"
OTHER_TYPES = (None, "x", 7, 1.5, True, [], [1], {}, {"a": 1})


def damaged() -> Iterator[tuple[str, list[str]]]:
    """A recorded journal, each time with one event lost or one value of another type."""
    lines = RECORDED.read_text().splitlines()
    for number in range(len(lines)):
        yield f"without line {number}", [*lines[:number], *lines[number + 1 :]]
    seen = set()
    for number, line in enumerate(lines):
        event = json.loads(line)
        for place in places(event):
            if (kind := (event["event"], *place)) not in seen:
                seen.add(kind)
                for value in OTHER_TYPES:
                    changed = json.dumps(with_value(event, place, value))
                    yield f"{kind} is {value!r}", [*lines[:number], changed, *lines[number + 1 :]]


def places(value: Any, deeper: int = 2) -> Iterator[tuple[str, ...]]:
    for key, below in value.items() if isinstance(value, dict) else ():
        yield (key,)
        if deeper:
            yield from ((key, *rest) for rest in places(below, deeper - 1))


def with_value(event: Any, place: tuple[str, ...], value: Any) -> Any:
    first, *rest = place
    return {**event, first: with_value(event[first], tuple(rest), value) if rest else value}


@pytest.mark.slow
def test_a_lost_or_mistyped_event_is_one_line(tmp_path: Path) -> None:
    """Whoever reads a journal gets a state, or a JournalError that names the line."""
    path = tmp_path / "journal.jsonl"
    refused = 0
    for what, lines in damaged():
        path.write_text("\n".join(lines) + "\n")
        try:
            summarise(rebuild(replay(path)))
        except JournalError as error:
            refused += f"{path}, line " in str(error) and "\n" not in str(error)
        except Exception as error:
            error.add_note(what)
            raise
    assert refused > 1000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"event": "variant_writen"}, "'variant_writen' is not an event"),
        ({"round": "two"}, "round is 'two', not int"),
        ({"round": True}, "round is True, not int"),
        ({"at_s": None}, "not 'NoneType'"),
        ({"idea": "nothing"}, "but its content gives"),
        ({"language": "pascal"}, "language is 'pascal'"),
        ({"source": 7}, "'int' object"),
    ],
)
def test_a_mistyped_value_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "journal.jsonl"
    lines = RECORDED.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "variant_written")
    lines[number] = json.dumps({**json.loads(lines[number]), **change})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(JournalError, match=rf"line {number + 1}: not an event, or one that another") as error:
        replay(path)
    assert says in str(error.value)


def test_a_journal_without_its_start(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text("\n".join(RECORDED.read_text().splitlines()[1:]) + "\n")
    with pytest.raises(JournalError, match=r"line 1: .* does not begin with run_started"):
        Journal(path)


def test_a_disk_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    events = replay(RECORDED)
    with Journal(path) as journal:
        journal.append(events[:1])

        def full(fd: int, data: bytes) -> int:
            if len(data) > 10:
                return write(fd, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        write = os.write
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space left") as failed:
                journal.append(events[1:2])
        assert failed.value.filename == str(path)
        journal.append(events[1:2])
    assert replay(path) == events[:2]
