"""What is read out of ELF files, held against `readelf`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evaluators.elf import Segment, segments


def test_the_loaded_segments_are_those_that_readelf_tells() -> None:
    path = Path(sys.executable).resolve()
    told = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True, check=True).stdout
    expected = []
    for line in told.splitlines():
        kind, _, rest = line.strip().partition(" ")
        if kind == "LOAD":
            offset, address, _, size, _, *flags = rest.split()
            executable = "E" in flags[:-1]
            expected.append(
                Segment(
                    offset=int(offset, 16),
                    address=int(address, 16),
                    size=int(size, 16),
                    executable=executable,
                )
            )
    assert segments(path) == expected
    assert any(each.executable for each in expected)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"INPUT(libc.so.6)", b"\x7fELF\x01" + bytes(100)])
def test_other_files_have_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.so"
    path.write_bytes(content)
    assert segments(path) == []
