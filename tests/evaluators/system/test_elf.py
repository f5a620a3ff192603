"""What is read from ELF files, compared with `readelf`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evaluators.system.elf import Section, Segment, sections, segments

PROGRAM = Path(sys.executable).resolve()


def told(*flags: str) -> list[str]:
    command = ["readelf", *flags, str(PROGRAM)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_loaded_segments_match_readelf() -> None:
    expected = []
    for line in told("-lW"):
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
    assert segments(PROGRAM) == expected
    assert any(each.executable for each in expected)


def test_the_sections_match_readelf() -> None:
    expected = []
    for line in told("-SW"):
        _, bracket, rest = line.partition("] ")
        fields = rest.split()
        if bracket and len(fields) > 5 and fields[1] not in ("NOBITS", "Type") and int(fields[4], 16):
            name, _, address, offset, size, *_ = fields
            section = Section(name=name, address=int(address, 16), offset=int(offset, 16), size=int(size, 16))
            expected.append(section)
    assert sections(PROGRAM) == expected
    assert {".text", ".rodata"} <= {each.name for each in expected}


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"INPUT(libc.so.6)", b"\x7fELF\x01" + bytes(100)])
def test_other_files_have_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.so"
    path.write_bytes(content)
    assert segments(path) == []
    assert sections(path) == []


def test_a_file_that_is_cut_off_has_no_sections(tmp_path: Path) -> None:
    path = tmp_path / "cut.so"
    path.write_bytes(PROGRAM.read_bytes()[:5000])
    assert sections(path) == []
