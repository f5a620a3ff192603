"""Where a pool's scratch folders are, and whose they still are: what a killed process left is removed."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

_claims: dict[Path, int] = {}


def scratch_root(name: str) -> Path:
    """The folder of all scratch folders of one pool, the same path on every node."""
    return Path(f"/tmp/ideatree-{os.getuid()}") / name


def claim(root: Path) -> None:
    """Keeps the folder until `release`, or the end of this process, and removes those that nobody keeps.

    A claim is a shared lock on a file beside the folder, which the system drops however a process ends.
    Raises OSError when the folder above cannot be written.
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
        else:  # another process found the file free before we had the lock
            os.close(fd)


def release(root: Path) -> None:
    """Removes the folder at the end of its pool."""
    shutil.rmtree(root, ignore_errors=True)
    _lock_of(root).unlink(missing_ok=True)
    if (fd := _claims.pop(root, None)) is not None:
        os.close(fd)


def _lock_of(root: Path) -> Path:
    return root.with_name(f"{root.name}.lock")


def _remove_if_free(lock: Path) -> None:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # gone meanwhile
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink(missing_ok=True)
    except BlockingIOError:  # somebody's
        pass
    finally:
        os.close(fd)
