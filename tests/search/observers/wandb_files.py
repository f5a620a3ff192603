"""Reads what W&B keeps offline: the log of a run, record by record, and the files beside it."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

HEADER, BLOCK = 7, 32 * 1024
FULL, LAST = 1, 4
WAIT_S = 30.0


class OfflineRun:
    """One `offline-run-*` folder. `of_kind` has the records of its log, W&B's own protobuf messages."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        (log,) = folder.glob("run-*.wandb")
        deadline = time.monotonic() + WAIT_S  # W&B's own process writes, some time after `finish` returns
        while not (found := _by_kind(log))["exit"] and time.monotonic() < deadline:
            time.sleep(0.1)
        self.of_kind = found
        (self.run,) = self.of_kind["run"]

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was logged, a row for each step."""
        return [
            {_name(item): json.loads(item.value_json) for item in row.item} for row in self.of_kind["history"]
        ]

    @property
    def summary(self) -> dict[str, Any]:
        """The last value of each."""
        updates = (item for record in self.of_kind["summary"] for item in record.update)
        return {_name(item): json.loads(item.value_json) for item in updates}

    @property
    def config(self) -> dict[str, Any]:
        """What the run was opened with."""
        return {item.key: json.loads(item.value_json) for item in self.run.config.update}

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of the table that the last row of the history has under this name."""
        (path,) = [row[f"{name}.path"] for row in self.history if f"{name}.path" in row][-1:]
        assert path in {file.path for files in self.of_kind["files"] for file in files.files}
        content = json.loads((self.files / path).read_text())
        return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def away_from_home(patch: pytest.MonkeyPatch, home: Path) -> None:
    """W&B finds nobody's settings or key, keeps its own files in this folder, and starts a service of its own
    there: the one that an earlier test of this process started may be gone."""
    with contextlib.suppress(OSError):
        wandb.teardown()
    for name in ("HOME", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        patch.setenv(name, str(home))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        patch.delenv(name, raising=False)


def offline_runs(run_dir: Path) -> list[OfflineRun]:
    """Those that a search has left, in their order."""
    return [OfflineRun(each) for each in sorted((run_dir / "wandb").glob("offline-run-*"))]


def _name(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _by_kind(log: Path) -> defaultdict[str, list[Any]]:
    from wandb.proto import wandb_internal_pb2

    found: defaultdict[str, list[Any]] = defaultdict(list)
    for data in _records(log.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        found[kind].append(getattr(record, kind))
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """LevelDB's log format (leveldb/doc/log_format.md), behind a header of W&B's; its present Python package
    has no reader of it: in blocks, chunks of a checksum, a length, and whether a record begins or ends."""
    assert data[:4] == b":W&B"
    at, record = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += HEADER
        record += data[at : at + length]
        at += length
        if kind in (FULL, LAST):
            yield record
            record = b""
