"""The main memory that this process may use: the machine's, or less in a container."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

GIB = 2**30
CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")


def total_bytes() -> int:
    """The memory of the machine, or the container's limit."""
    return min([_meminfo("MemTotal"), *(limit for limit, _ in _limits())])


def free_bytes() -> int:
    """The memory that new processes can get now. Caches of files count as free."""
    return min([_meminfo("MemAvailable"), *(max(limit - used, 0) for limit, used in _limits())])


def words() -> str:
    """How much is free, in words."""
    return f"{free_bytes() / GIB:.1f} of {total_bytes() / GIB:.1f} GiB of memory are free"


def _meminfo(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", MEMINFO.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def _limits() -> Iterator[tuple[int, int]]:
    """The limit and the use of each control group that this process is in, of version 2 or 1."""
    for line in OWN_GROUPS.read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = CGROUPS / "memory" if controllers else CGROUPS
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used, cache = names if controllers else ("memory.max", "memory.current", "inactive_file")
        folder = base / place.lstrip("/")
        for each in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):  # no such file, or no limit ("max")
                most = int((each / limit).read_text())
                cached = re.search(rf"^{cache} (\d+)", (each / "memory.stat").read_text(), re.MULTILINE)
                yield most, int((each / used).read_text()) - (int(cached[1]) if cached else 0)
            if each == base:
                break
