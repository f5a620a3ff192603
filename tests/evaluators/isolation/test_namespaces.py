"""How processes in namespaces live and end."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evaluators.isolation import namespaces
from evaluators.system import process_tree
from tests.evaluators.conftest import LEVELS


def fault() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
@pytest.mark.parametrize(
    ("end", "codes"),
    [(lambda: None, (0,)), (lambda: os._exit(3), (3,)), (fault, (-signal.SIGSEGV, 128 + signal.SIGSEGV))],
    ids=["returns", "exits", "faults"],
)
def test_the_watched_process_ends_as_the_child_did(
    end: Callable[[], None], codes: tuple[int, ...], isolate: bool
) -> None:
    pid = namespaces.spawn(lambda _: end(), isolate=isolate)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in codes


@pytest.mark.slow
def test_a_child_that_raises_does_not_continue_in_its_parents_code() -> None:
    for isolate in (True, False):
        output = os.memfd_create("output")

        def child(level: str, output: int = output) -> None:
            sys.stderr = os.fdopen(output, "w", 1)
            raise RuntimeError(f"seven at {level}")

        pid = namespaces.spawn(child, isolate=isolate)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 70
        assert b"RuntimeError: seven at" in os.pread(output, 10_000, 0)
        os.close(output)


def daemonise(held: int) -> None:
    """Starts an orphan that keeps `held` open while it lives; it is alive on return."""
    ready, steady = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(held, b"!")
            os.close(steady)
            time.sleep(600)
        os._exit(0)
    os.close(steady)
    os.read(ready, 1)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["kill", "exit"])
def test_in_a_namespace_nothing_survives_the_child(by: str) -> None:
    if not namespaces.has_namespaces():
        pytest.skip("this machine gives no namespaces")
    read, write = os.pipe()

    def child(level: str) -> None:
        daemonise(write)
        if by == "kill":
            time.sleep(600)

    pid = namespaces.spawn(child, isolate=True)
    os.close(write)
    assert os.read(read, 1) == b"!", "the daemon never lived"
    if by == "kill":
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert select.select([read], [], [], 10)[0], "the daemon lives"
    assert os.read(read, 1) == b""
    os.close(read)


def with_a_mount(at: Path, say: Callable[[], str]) -> str:
    """What `say` returns in a child that sees a file system mounted there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            flags = namespaces.CLONE_NEWUSER | namespaces.CLONE_NEWNS
            process_tree.require_success(namespaces._libc.unshare(flags), "unshare")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text("0 0 1")
            Path("/proc/self/gid_map").write_text("0 0 1")
            namespaces._mount(b"tmpfs", bytes(at), b"tmpfs", 0)
            os.write(write, say().encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as said:
        return said.read()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["tmp", "scratch", "hidden"])
def test_what_is_mounted_below_a_folder_costs_no_confinement(where: str, tmp_path: Path) -> None:
    if not namespaces.has_namespaces() or os.getuid() != 0:
        pytest.skip("this machine gives no namespaces, or no mounts")
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "file").write_text("the folder's own")

    def level() -> str:
        if where == "tmp":
            return namespaces.why_no_namespaces.__wrapped__() or "namespaces"
        (below / "file").write_text("the mount's own")
        output = os.memfd_create("level")

        def child(level: str) -> None:
            (tmp_path / "file").write_text("a candidate's")
            try:
                (below / "file").write_text("a candidate's")
            except OSError:
                os.write(output, level.encode())

        hidden = [str(tmp_path / "file")] if where == "hidden" else []
        os.waitpid(namespaces.spawn(child, isolate=True, writable=tmp_path, hidden=hidden), 0)
        return os.pread(output, 1000, 0).decode()

    assert with_a_mount(below, level) == "namespaces"


def test_the_reason_why_there_are_no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "CLONE_NEWUSER", 1)  # which unshare does not know
    assert namespaces.why_no_namespaces.__wrapped__() == "OSError: [Errno 22] no namespaces: Invalid argument"


def test_no_process_starts_without_namespaces_that_are_available(monkeypatch: pytest.MonkeyPatch) -> None:
    if not namespaces.has_namespaces():
        pytest.skip("this machine gives no namespaces")
    monkeypatch.setattr(namespaces, "CLONE_NEWUSER", 1)  # which unshare does not know
    read, write = os.pipe()

    def child(level: str) -> None:
        os.write(write, level.encode())

    pid = namespaces.spawn(child, isolate=True)
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 70
    assert os.read(read, 1) == b""
    os.close(read)


@pytest.mark.slow
def test_the_child_dies_with_the_process_that_started_it() -> None:
    read, write = os.pipe()
    for isolate in (True, False):
        parent = os.fork()
        if parent == 0:
            namespaces.spawn(lambda _: (os.write(write, b"!"), time.sleep(600)), isolate=isolate)  # type: ignore[arg-type, func-returns-value]
            time.sleep(600)
        assert os.read(read, 1) == b"!"
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    os.close(write)
    assert select.select([read], [], [], 10)[0]
    assert os.read(read, 1) == b""
    os.close(read)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("isolate", [True, False])
def test_a_starting_child_dies_with_its_parent_too(isolate: bool, stopped: bool) -> None:
    """The parent ends as soon as the child exists, or at any moment before, and may be stopped."""
    for turn in range(20):
        read, write = os.pipe()
        parent = os.fork()
        if parent == 0:
            pid = namespaces.spawn(lambda _: time.sleep(600), isolate=isolate)  # type: ignore[arg-type, return-value]
            os.write(write, str(pid).encode())
            time.sleep(600)
        os.close(write)
        if stopped:
            process_tree.stop_tree(int(os.read(read, 16)))
        else:
            time.sleep(turn * 0.0005)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        deadline = time.monotonic() + 10
        while select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not os.read(read, 16):
                break
        else:
            pytest.fail(f"somebody is left in turn {turn}")
        os.close(read)
