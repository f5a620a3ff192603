"""File and device access of real confined processes that act like a hostile kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.evaluators.conftest import LEVELS
from tests.evaluators.isolation.confined import REFUSED, attempt, confined, needs

ROOT = Path(__file__).parents[3]


@pytest.fixture
def home_file() -> Iterator[Path]:
    try:
        with tempfile.NamedTemporaryFile(dir=Path.home(), prefix=".ideatree-test-") as file:
            file.write(b"secret")
            file.flush()
            yield Path(file.name)
    except OSError as error:
        pytest.skip(f"the home cannot be written: {error}")


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_writing_is_possible_in_the_scratch_folder_alone(scratch: Path, outside: Path, isolate: bool) -> None:
    needs("landlock")
    with tempfile.TemporaryDirectory(dir=Path.home()) as home:
        places = [
            outside,
            Path(tempfile.gettempdir()),
            Path(home),
            ROOT,
            ROOT / "evaluators",
            Path("/dev/shm"),
        ]

        def body() -> list[str]:
            return [attempt(lambda p=p: (p / "planted").write_text("x")) for p in [scratch, *places]]  # type: ignore[misc]

        found, _ = confined(body, scratch, isolate=isolate)
        left = [place for place in places if (place / "planted").exists()]
    assert left == []
    assert found[0] == "done"
    assert all(each in REFUSED for each in found[1:]), found
    assert (scratch / "planted").read_text() == "x"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/ptmx"), reason="there is no device to try")
@pytest.mark.parametrize("isolate", LEVELS)
def test_only_granted_devices_can_be_used(scratch: Path, isolate: bool) -> None:
    needs("landlock")
    device = Path("/dev/ptmx")

    def body() -> str:
        return attempt(lambda: os.open(device, os.O_RDWR))

    assert confined(body, scratch, isolate=isolate, devices=(device,))[0] == "done"
    assert confined(body, scratch, isolate=isolate)[0] in REFUSED


@pytest.mark.parametrize("isolate", LEVELS)
def test_files_outside_cannot_be_changed(scratch: Path, outside: Path, isolate: bool) -> None:
    needs("landlock")
    file, inside = outside / "file", scratch / "file"

    def body() -> dict[str, str]:
        (scratch / "link").symlink_to(file)
        (scratch / "mine").write_text("x")
        actions: dict[str, Callable[[], object]] = {
            "append": lambda: os.open(file, os.O_WRONLY | os.O_APPEND),
            "truncate": lambda: os.truncate(file, 0),
            "unlink": lambda: os.unlink(file),
            "move in": lambda: os.rename(file, inside),
            "move out": lambda: os.rename(scratch / "mine", outside / "mine"),
            "link in": lambda: os.link(file, inside),
            "link out": lambda: os.link(scratch / "mine", outside / "mine"),
            "through a link": lambda: (scratch / "link").write_text("x"),
            "new folder": lambda: (outside / "folder").mkdir(),
            "new link": lambda: (outside / "link").symlink_to(scratch),
            "new pipe": lambda: os.mkfifo(outside / "pipe"),
        }
        return {name: attempt(action) for name, action in actions.items()}

    found, _ = confined(body, scratch, isolate=isolate)
    assert {name: each for name, each in found.items() if each not in REFUSED} == {}
    assert [p.name for p in outside.iterdir()] == ["file"]
    assert file.read_text() == "secret"


@pytest.mark.parametrize("isolate", LEVELS)
def test_homes_and_the_repository_cannot_be_read(
    scratch: Path, outside: Path, home_file: Path, isolate: bool
) -> None:
    needs("landlock")
    hidden = [
        home_file,
        outside / "file",
        ROOT / "pyproject.toml",
        ROOT / "search" / "protocols.py",
        Path(__file__),
        Path("/etc/shadow"),
    ]

    def body() -> list[str]:
        (scratch / "link").symlink_to(home_file)
        tried = [*hidden, scratch / "link", Path("/proc/self/cwd") / "pyproject.toml"]
        found = [attempt(lambda p=p: p.read_bytes()) for p in tried]  # type: ignore[misc]
        return [*found, *(attempt(lambda p=p: os.listdir(p)) for p in (Path.home(), ROOT, outside))]  # type: ignore[misc]

    found, _ = confined(body, scratch, isolate=isolate)
    assert all(each in REFUSED for each in found), dict(zip(hidden, found, strict=False))


@pytest.mark.parametrize("isolate", LEVELS)
def test_files_that_a_kernel_needs_can_be_read(scratch: Path, outside: Path, isolate: bool) -> None:
    (scratch / "kernel.py").write_text("x")
    needed = [
        scratch / "kernel.py",
        ROOT / "evaluators" / "records" / "problem.py",
        Path(os.__file__),
        Path(pytest.__file__),
        Path("/proc/self/maps"),
        Path("/etc/passwd"),
        outside / "file",
    ]
    found, _ = confined(
        lambda: [attempt(lambda p=p: p.read_bytes()) for p in needed],  # type: ignore[misc]
        scratch,
        isolate=isolate,
        readable=(outside,),
    )
    assert found == ["done"] * len(needed)


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_children_are_confined_like_their_parent(scratch: Path, outside: Path, isolate: bool) -> None:
    needs("landlock", "seccomp")
    code = f"open({str(outside / 'file')!r})", "import socket; socket.socket()"

    def body() -> list[str]:
        run = (subprocess.run([sys.executable, "-c", c], capture_output=True, text=True) for c in code)
        return [done.stderr for done in run]

    found, _ = confined(body, scratch, isolate=isolate)
    assert all("PermissionError" in each for each in found), found
