"""Copies of a library's code are found again, wherever they lie, and nothing else is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from evaluators.census import NEUTRAL_FILES
from evaluators.library_code import PIECE, REACH, LibraryCode, installed

LIBRARY = next(
    Path(line.split(maxsplit=5)[5])
    for line in Path("/proc/self/maps").read_text().splitlines()
    if "libc" in line and "x" in line.split()[1]
)
"""Some shared library that is there."""
PROGRAM = """
void scaled(const float* x, float* y, long n, float by) { for (long i = 0; i < n; i++) y[i] = by * x[i]; }
double total(const float* x, long n) { double sum = 0; for (long i = 0; i < n; i++) sum += x[i]; return sum; }
"""


def text_of(path: Path) -> bytes:
    """Something out of the middle of a library's code."""
    (line,) = (
        each
        for each in subprocess.run(
            ["readelf", "-SW", path], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if " .text " in each
    )
    fields = line.rpartition(".text")[2].split()
    offset, size = int(fields[2], 16), int(fields[3], 16)
    return path.read_bytes()[offset + size // 2 :][: 2**14]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> LibraryCode:
    return LibraryCode.of([LIBRARY], tmp_path_factory.mktemp("kept"))


@pytest.mark.parametrize("shift", [0, 1, 17, 63])
def test_a_copy_is_found_wherever_it_lies(code: LibraryCode, shift: int) -> None:
    text = text_of(LIBRARY)
    moved = os.urandom(shift + 300) + text + os.urandom(300)
    inside = range(shift + 300 + REACH, len(moved) - 300 - REACH, 97)
    found = [code.holds(moved, place) for place in inside]
    assert sum(found) > 0.97 * len(found), "but for padding"
    assert not code.holds(moved, shift + 300 - REACH)
    assert not code.holds(moved, len(moved) - 1)


def test_other_code_is_not_found(code: LibraryCode, tmp_path: Path) -> None:
    source = tmp_path / "own.c"
    source.write_text(PROGRAM)
    for level in ("-O1", "-O2", "-O3"):
        subprocess.run(["gcc", level, "-c", source, "-o", tmp_path / "own.o"], check=True)
        own = (tmp_path / "own.o").read_bytes()
        assert not any(code.holds(own, place) for place in range(0, len(own), 16))
    for nothing in (b"", b"\x90" * 4096, b"\0" * 4096, os.urandom(4096)):
        assert not code.holds(nothing, len(nothing) // 2)


def test_a_piece_alone_is_no_copy(code: LibraryCode) -> None:
    text = text_of(LIBRARY)[: REACH + PIECE]
    whole = os.urandom(999) + text + os.urandom(999)
    assert code.holds(whole, 999 + REACH // 2)
    torn = bytearray(whole)
    torn[999 + PIECE : 999 + len(text) : PIECE] = b"\0" * (len(text) // PIECE - 1)
    assert not any(code.holds(bytes(torn), place) for place in range(len(torn)))


def test_it_is_kept_for_the_same_files(tmp_path: Path) -> None:
    library, folder = tmp_path / "some.so", tmp_path / "kept"
    library.write_bytes(LIBRARY.read_bytes())
    text = text_of(LIBRARY)
    assert LibraryCode.of([library], folder).holds(text, 5000)
    (kept,) = folder.iterdir()
    np.save(kept, np.zeros(0, np.uint64))
    assert not LibraryCode.of([library], folder).holds(text, 5000), "it was read, and not made again"
    library.write_bytes(LIBRARY.read_bytes() + b"another version")
    assert LibraryCode.of([library], folder).holds(text, 5000)
    (other,) = folder.iterdir()
    assert other.name != kept.name, "what is out of date is removed"
    other.write_bytes(b"torn")
    assert LibraryCode.of([library], folder).holds(text, 5000)


def test_what_is_no_library_has_no_code(tmp_path: Path) -> None:
    for name, content in [("text.so", b"INPUT(libc.so.6)"), ("empty.so", b""), ("short.so", b"\x7fELF")]:
        (tmp_path / name).write_bytes(content)
    code = LibraryCode.of(tmp_path.glob("*.so"), tmp_path / "text.so" / "no folder")
    assert not code.holds(text_of(LIBRARY), 5000)


def test_libraries_are_what_computes() -> None:
    pytest.importorskip("torch")
    names = {path.name for path in installed(NEUTRAL_FILES)}
    assert {"libtorch_cpu.so"} <= names
    assert any("openblas" in name for name in names), "numpy's, which a kernel can load by itself"
    assert not any(name.startswith(("libc.", "libm.", "libpython", "libtorch_python")) for name in names)
