"""Stand-ins for the compilers of a profiled build: they add the flags that make a compiler report what it
did, and keep what it says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from evaluators.base.compiler_messages import without_folders
from evaluators.profiling.vectorization import CLANG_FLAGS, GCC_FLAGS

FOLDER, REPORTS = "compilers", "reports"
NVCC_FLAGS = ("-lineinfo", "-Xptxas=-v")
SCRIPT = """#!/bin/sh
said=$(mktemp {reports}/XXXXXX) || exit 1
{compiler} "$@" {flags} 2>"$said"
status=$?
cat "$said" >&2
exit $status
"""
SPILLED = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
ENTRY = re.compile(r"Function properties for (\S+)|Compiling entry function '([^']+)'")
WARNING = re.compile(r"\bwarning\b", re.IGNORECASE)
MOST_REPORTS, MOST_BYTES = 50, 4 * 2**20
WARNING_CHARACTERS = 200
LONGEST_S = 20.0


def stand_ins(scratch: Path, *, cuda: bool) -> dict[str, str]:
    """Writes the stand-ins into a candidate's folder; returns the variables that make builds use them. A
    compiler that is missing has none."""
    folder = scratch / FOLDER
    (folder / REPORTS).mkdir(parents=True, exist_ok=True)
    if cuda:
        nvcc = _found(*(str(Path(home, "bin", "nvcc")) for home in _cuda_homes()), "nvcc")
        return {"PYTORCH_NVCC": _write(folder, "nvcc", nvcc, NVCC_FLAGS)} if nvcc else {}
    compiler = _found(os.environ.get("CXX", ""), "c++", "g++", "clang++")
    if compiler is None:
        return {}
    is_clang = "clang" in _version(compiler)
    name, flags = ("clang++", CLANG_FLAGS) if is_clang else ("g++", GCC_FLAGS)
    return {"CXX": _write(folder, name, compiler, flags)}


def reports(scratch: Path) -> str:
    """What the compilers said in the builds of this folder."""
    texts = []
    for path in sorted((scratch / FOLDER / REPORTS).glob("*"))[:MOST_REPORTS]:
        if path.is_file() and not path.is_symlink():
            with path.open(errors="replace") as text:
                texts.append(text.read(MOST_BYTES))
    return "\n".join(texts)


def cuda_warnings(text: str) -> list[str]:
    """The warnings of nvcc and ptxas, and the functions whose registers were spilled."""
    found, function = [], ""
    for line in text.splitlines():
        if match := ENTRY.search(line):
            function = match[1] or match[2]
        elif (match := SPILLED.search(line)) and any(int(match[group]) for group in (2, 3)):
            found.append(f"{function}: {match[0]}")
        elif WARNING.search(line):
            found.append(without_folders(line.strip())[:WARNING_CHARACTERS])
    return list(dict.fromkeys(found))


def _write(folder: Path, name: str, compiler: str, flags: tuple[str, ...]) -> str:
    path = folder / name
    path.write_text(
        SCRIPT.format(
            reports=shlex.quote(str(folder / REPORTS)),
            compiler=shlex.quote(compiler),
            flags=shlex.join(flags),
        )
    )
    path.chmod(0o755)
    return str(path)


def _found(*names: str) -> str | None:
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _cuda_homes() -> list[str]:
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    return [*filter(None, homes), "/usr/local/cuda"]


def _version(compiler: str) -> str:
    done = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    return done.stdout
