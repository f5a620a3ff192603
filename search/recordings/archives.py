"""Recordings in one compressed file: a run's journal, the calls to its models and its settings, which is all
that a replay, a report or a continued search needs."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import yaml

from evaluators.base.usage_error import UsageError
from evaluators.records.problem import content_id
from evaluators.system.user_cache import cache_folder
from search.records.journal import JOURNAL, newest_run_below

SUFFIX = ".tar.xz"
SETTINGS = (".hydra/config.yaml", ".hydra/overrides.yaml")
FILES = (JOURNAL, "model_calls.jsonl", "README.md", "queue_name.txt", *SETTINGS)
"""What an archive holds of a run folder; the other files can be written again."""


def pack(run: Path, archive: Path) -> int:
    """Writes a run's archive, or replaces it. Absolute paths in the settings become relative: they name
    folders of one machine.

    Returns:
        The number of bytes of the archive.

    Raises:
        UsageError: `run` is no run folder, or the archive cannot be written.
    """
    if not (run / JOURNAL).exists():
        below = newest_run_below(run)
        raise UsageError(f"run={run}: not the folder of a run (it has no {JOURNAL}){below}")
    part = archive.with_name(f"{archive.name}.part")
    try:
        with tarfile.open(part, "w:xz") as file:
            for name in FILES:
                if (path := run / name).exists():
                    content = path.read_bytes()
                    data = _portable(content) if name in SETTINGS else content
                    member = tarfile.TarInfo(name)  # without times and owners: equal runs give equal files
                    member.size = len(data)
                    file.addfile(member, io.BytesIO(data))
        part.replace(archive)
    except OSError as error:
        raise UsageError(f"out={archive} cannot be written: {error.strerror or error}") from error
    return archive.stat().st_size


def unpacked(archive: Path) -> Path:
    """The folder with an archive's contents, in the user's cache. Raises UsageError if it is no archive of a
    run."""
    try:
        folder = cache_folder() / "recordings" / content_id(archive.read_bytes().hex())
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
            with tarfile.open(archive) as file:
                file.extractall(part, members=_known(file), filter="data")
            if not (part / JOURNAL).exists():
                raise UsageError(f"{archive} has no {JOURNAL}")
            _move(part, folder)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UsageError(f"{archive} cannot be read as a packed run: {error}") from error
    return folder


def _known(file: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    return (member for member in file if member.name in FILES)


def _move(part: Path, folder: Path) -> None:
    """Moves the finished folder to its place, unless another process was faster."""
    try:
        part.rename(folder)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)


def _portable(content: bytes) -> bytes:
    return yaml.safe_dump(_relative(yaml.safe_load(content)), sort_keys=False).encode()


def _relative(value: Any) -> Any:
    """The settings with the last part of each absolute path, also in `key=/a/path`."""
    if isinstance(value, dict):
        return {key: _relative(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_relative(each) for each in value]
    if isinstance(value, str):
        key, equals, path = value.rpartition("=")
        return f"{key}{equals}{PurePath(path).name}" if path.startswith("/") else value
    return value
