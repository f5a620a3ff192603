"""The cache of builds returns what was stored, whole or not at all, and stays within its limits."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators import PACKAGE
from evaluators.build import build_cache
from evaluators.build.build_cache import BuildCache, build_key, own_code
from evaluators.records.problem import Kernel, Problem

PROBLEM = Problem(name="file/x", source="class Model: ...", overrides={"N": 4})
KERNEL = Kernel(source="class ModelNew: ...", language="cuda")


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(folder=tmp_path / "builds")


def test_stored_content_is_returned(cache: BuildCache) -> None:
    assert cache.get("a") is None
    cache.put("a", b"one")
    cache.put("b", b"")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"one", b"", None)
    cache.put("a", b"two")
    assert BuildCache(folder=cache.folder).get("a") == b"two"


@pytest.mark.parametrize(
    "damage", [b"", b"short", b"x" * 32, b"x" * 5000], ids=["empty", "short", "no content", "other"]
)
def test_a_damaged_entry_is_a_miss(cache: BuildCache, damage: bytes) -> None:
    cache.put("a", b"one" * 1000)
    assert cache.folder is not None
    entry = cache.folder / "a"
    entry.write_bytes(damage)
    assert cache.get("a") is None
    assert not entry.exists()
    cache.put("a", b"two")
    assert cache.get("a") == b"two"


def test_a_truncated_entry_is_a_miss(cache: BuildCache) -> None:
    cache.put("a", b"one" * 1000)
    assert cache.folder is not None
    entry = cache.folder / "a"
    entry.write_bytes(entry.read_bytes()[:-1])
    assert cache.get("a") is None


def test_the_least_recently_used_entries_are_evicted_first(tmp_path: Path) -> None:
    cache = BuildCache(folder=tmp_path, max_bytes=3500)
    for age, key in enumerate(["c", "b", "a"]):
        cache.put(key, key.encode() * 1000)
        os.utime(tmp_path / key, (1000 - age, 1000 - age))
    assert cache.get("a") is not None, "asked for: not the oldest any more"
    cache.put("d", b"d" * 1000)
    assert {key for key in "abcd" if cache.get(key)} == {"a", "c", "d"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3500


def test_an_entry_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    BuildCache(folder=tmp_path, max_bytes=3500).put("a", b"x" * 3500)
    BuildCache(folder=tmp_path, max_bytes=0).put("b", b"")
    assert list(tmp_path.iterdir()) == []


def test_many_at_once(tmp_path: Path) -> None:
    """Concurrent writers of the same keys, readers and evictions: every answer is whole or missing."""
    cache = BuildCache(folder=tmp_path, max_bytes=300_000)
    wrong: list[bytes] = []

    def work(number: int) -> None:
        for step in range(60):
            key = str((number + step) % 5)
            cache.put(key, key.encode() * 80_000)
            found = cache.get(str(step % 5))
            if found is not None and found != str(step % 5).encode() * 80_000:
                wrong.append(found[:20])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sorted(len(path.name) for path in tmp_path.iterdir()) == [1] * len(list(tmp_path.iterdir()))


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = BuildCache(folder=tmp_path / "file" / "builds")
    cache.put("a", b"one")
    assert cache.get("a") is None


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    BuildCache().put("a", b"one")
    assert (tmp_path / "xdg" / "ideatree" / "builds" / "a").exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    BuildCache().put("a", b"one")
    assert (tmp_path / ".cache" / "ideatree" / "builds" / "a").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / ".cache" / "ideatree" / "builds").stat().st_mode & 0o777 == 0o700


def test_a_key_depends_on_everything_that_a_build_does() -> None:
    key = build_key(PROBLEM, KERNEL, "9.0")
    assert len(key) == 64
    assert key == build_key(replace(PROBLEM), Kernel(source=KERNEL.source, language="cuda"), "9.0")
    others = [
        build_key(PROBLEM, KERNEL, "8.0"),
        build_key(replace(PROBLEM, overrides={"N": 8}), KERNEL, "9.0"),
        build_key(replace(PROBLEM, dtype="float16"), KERNEL, "9.0"),
        build_key(replace(PROBLEM, source="class Model: pass"), KERNEL, "9.0"),
        build_key(PROBLEM, replace(KERNEL, source=KERNEL.source + "\n"), "9.0"),
        build_key(PROBLEM, replace(KERNEL, language="cpp"), "9.0"),
    ]
    assert len({key, *others}) == len(others) + 1


def test_a_key_depends_on_the_toolchain_and_on_our_code(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {build_key(PROBLEM, KERNEL, "9.0")}
    monkeypatch.setattr(build_cache, "own_code", lambda: "other")
    keys.add(build_key(PROBLEM, KERNEL, "9.0"))
    monkeypatch.setattr(build_cache, "_toolchain", lambda: {"package torch": "1.0"})
    keys.add(build_key(PROBLEM, KERNEL, "9.0"))
    assert len(keys) == 3
    monkeypatch.undo()
    assert "package torch" in build_cache._toolchain()


@pytest.mark.parametrize("name", ["builder.py", "build/deep/builder.py", "headers/torch/extension.h"])
def test_our_code_counts_in_every_folder(tmp_path: Path, name: str) -> None:
    """Otherwise a stale build would be used after a change."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("one")
    before = own_code.__wrapped__(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "builder.pyc").write_text("compiled")
    assert own_code.__wrapped__(tmp_path) == before
    path.write_text("two")
    changed = own_code.__wrapped__(tmp_path)
    path.rename(path.with_name(f"other_{path.name}"))
    assert len({before, changed, own_code.__wrapped__(tmp_path)}) == 3


def test_the_package_is_the_whole_of_it() -> None:
    assert PACKAGE.name == "evaluators"
    assert Path(build_cache.__file__).is_relative_to(PACKAGE)
