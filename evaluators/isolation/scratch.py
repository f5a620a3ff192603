"""The folders that candidates may write to: where they are, whose they still are (what a killed process left
is removed), and what is too much in them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path

SOURCE = "kernel.py"
"""The kernel's file in its folder."""
MAX_FILES, MAX_PATH = 50_000, 1024

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
    remove(root)
    _lock_of(root).unlink(missing_ok=True)
    if (fd := _claims.pop(root, None)) is not None:
        os.close(fd)


def too_much_written(folder: Path, most_bytes: int) -> str | None:
    """What is too much about what a candidate has left in a folder, in words; None where nothing is. So many
    files, and folders so deep, would keep whoever walks or removes them from their work."""
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
    """Removes what a candidate has left, however deep, also what it has closed to us; never raises."""
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
    except OSError:  # gone meanwhile
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(lock.with_suffix(""))
        lock.unlink(missing_ok=True)
    except BlockingIOError:  # somebody's
        pass
    finally:
        os.close(fd)
