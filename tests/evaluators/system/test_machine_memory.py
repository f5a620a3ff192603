"""How much memory there is, in a container too."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.system import machine_memory

GIB = 2**30


def test_of_this_machine() -> None:
    assert 0 < machine_memory.free_bytes() <= machine_memory.total_bytes()
    assert machine_memory.words().endswith("GiB of memory are free")


@pytest.mark.parametrize(
    ("groups", "files", "total", "free"),
    [
        ("0::/\n", {"memory.max": "max"}, 64, 48),
        ("0::/\n", {"memory.max": f"{24 * GIB}", "memory.current": f"{10 * GIB}"}, 24, 14),
        (
            "0::/a/b\n",
            {
                "memory.max": f"{32 * GIB}",
                "memory.current": "0",
                "a/memory.max": f"{8 * GIB}",
                "a/memory.current": f"{6 * GIB}",
                "a/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            },
            8,
            4,
        ),
        (
            "11:cpuset:/x\n4:memory:/job\n0::/\n",
            {
                "memory/job/memory.limit_in_bytes": f"{16 * GIB}",
                "memory/job/memory.usage_in_bytes": f"{20 * GIB}",
                "memory/job/memory.stat": f"inactive_file 0\ntotal_inactive_file {2 * GIB}\n",
            },
            16,
            0,
        ),
    ],
)
def test_of_a_container(
    groups: str, files: dict[str, str], total: int, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text(
        f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {48 * GIB // 1024} kB\n"
    )
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        place = tmp_path / "cgroup" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        if not (place.parent / "memory.stat").exists():
            (place.parent / "memory.stat").write_text("")
    monkeypatch.setattr(machine_memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine_memory, "OWN_GROUPS", tmp_path / "groups")
    assert machine_memory.total_bytes() == total * GIB
    assert machine_memory.free_bytes() == free * GIB
