"""The folders that candidates may write to: where they are, who owns them (folders of a killed process are
removed), and when they hold too much."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path

SOURCE = "kernel.py"
"""Name of the kernel's file in its folder."""
MAX_FILES, MAX_PATH = 50_000, 1024

_claims: dict[Path, int] = {}


def scratch_root(name: str) -> Path:
    """The folder of all scratch folders of one pool; the same path on every node."""
    return Path(f"/tmp/ideatree-{os.getuid()}") / name


def claim(root: Path) -> None:
    """Keeps the folder until `release` or the end of this process, and removes folders that no process keeps.

    A claim is a shared lock on a file next to the folder, which the system drops however the process ends.
    Raises OSError if the parent folder cannot be written.
    """
    if root in _claims:
        return
    root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for lock in root.parent.glob("*.lock"):
        _remove_if_free(lock)
    while root not in _claims:
        fd = os.open(_lock_of(root), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.fstat(fd).st_nlink:
            _claims[root] = fd
        else:  # another process found it unlocked before we had the lock
            os.close(fd)


def release(root: Path) -> None:
    """Removes the folder at the end of its pool."""
    remove(root)
    _lock_of(root).unlink(missing_ok=True)
    if (fd := _claims.pop(root, None)) is not None:
        os.close(fd)


def too_much_written(folder: Path, most_bytes: int) -> str | None:
    """Why the contents of a candidate's folder exceed the limits, or None. Very many files or very deep
    folders would block whatever walks or removes them."""
    bytes_, files, todo = 0, 0, [str(folder)]
    while todo:
        above = todo.pop()
        if len(above) > len(str(folder)) + MAX_PATH:
            return "nested folders too deeply"
        with contextlib.suppress(OSError), os.scandir(above) as entries:
            for entry in entries:
                files += 1
                if files > MAX_FILES:
                    return f"made more than {MAX_FILES:,} files"
                with contextlib.suppress(OSError):
                    bytes_ += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
    return f"wrote more than {most_bytes / 2**30:g} GB of files" if bytes_ > most_bytes else None


def remove(folder: Path) -> None:
    """Removes a candidate's folder however deep it is, even if the candidate has denied us access. Never
    raises."""
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        if not os.path.lexists(folder):
            return
        with contextlib.suppress(OSError):
            subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def _lock_of(root: Path) -> Path:
    return root.with_name(f"{root.name}.lock")


def _remove_if_free(lock: Path) -> None:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # already gone
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(lock.with_suffix(""))
        lock.unlink(missing_ok=True)
    except BlockingIOError:  # another process keeps it
        pass
    finally:
        os.close(fd)
