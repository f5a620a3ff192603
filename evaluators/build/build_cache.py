"""Build results, stored on this machine under a hash of everything they depend on, for any run and process.

An entry is made from a folder that a candidate could write to. It is returned only to the same candidate: the
key is the full SHA-256 of its source and of everything else that goes into a build.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from evaluators import PACKAGE
from evaluators.base.languages import LANGUAGES
from evaluators.build.toolchain import cpp_compiler, cuda_compiler
from evaluators.isolation import confinement
from evaluators.records.problem import Kernel, Problem
from evaluators.system.user_cache import cache_folder

DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, kw_only=True)
class BuildCache:
    """A folder of entries with checksums. Safe for any number of processes: an entry appears whole or not at
    all, and a damaged or missing one is a miss.

    Attributes:
        folder: where the entries are; None: `ideatree/builds` in the user's cache folder of the machine in
            use.
        max_bytes: size limit, above which the least recently used entries are removed; 0 stores nothing.
    """

    folder: Path | None = None
    max_bytes: int = 4 * 2**30

    def get(self, key: str) -> bytes | None:
        """The content stored under the key, or None."""
        path = self._folder() / key
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        content = data[DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != data[:DIGEST_BYTES]:
            path.unlink(missing_ok=True)
            return None
        return content

    def put(self, key: str, content: bytes) -> None:
        """Stores the content if possible: a full disk is no reason to fail."""
        if len(content) + DIGEST_BYTES > self.max_bytes:
            return
        folder = self._folder()
        unfinished = folder / f"{key}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                unfinished.write_bytes(hashlib.sha256(content).digest() + content)
                unfinished.replace(folder / key)
            finally:
                unfinished.unlink(missing_ok=True)
            self._evict(folder)

    def _folder(self) -> Path:
        return self.folder or cache_folder() / "builds"

    def _evict(self, folder: Path) -> None:
        entries = []
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process was faster
                entries.append((path.stat(), path))
        total = sum(each.st_size for each, _ in entries)
        for stat, path in sorted(entries, key=lambda entry: entry[0].st_mtime):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size


def build_key(problem: Problem, kernel: Kernel, architecture: str) -> str:
    """64 hexadecimal digits that depend on everything a build depends on: candidate, problem (Triton compiles
    for its shapes), architecture, toolchain, and this package."""
    parts = [asdict(problem), kernel.source, kernel.language, architecture, _toolchain(), own_code()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _toolchain() -> Mapping[str, str]:
    found = confinement.clean_environment()
    found.pop("CUDA_VISIBLE_DEVICES", None)
    for package in ("torch", "ninja", "numpy", *filter(None, (each.package for each in LANGUAGES.values()))):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[f"package {package}"] = importlib.metadata.version(package)
    for name in (cpp_compiler(), "g++", "nvcc", cuda_compiler()):
        if path := shutil.which(name):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            found[f"version of {name}"] = done.stdout
    return found


@functools.cache
def own_code(package: Path = PACKAGE) -> str:
    """A hash of all files of this package, because they decide what is compiled and with which headers."""
    digest = hashlib.sha256()
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in sorted(files):
        digest.update(f"{path.relative_to(package)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()
