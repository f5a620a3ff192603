"""Signals, memory, system calls and capabilities of real confined processes that try to reach others."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.evaluators.conftest import LEVELS
from tests.evaluators.isolation.confined import SECRET, attempt, confined, needs


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_no_signal_reaches_a_process_outside(scratch: Path, isolate: bool) -> None:
    needs("landlock")
    with subprocess.Popen(["sleep", "60"]) as victim:
        found, _ = confined(
            lambda: [
                attempt(lambda: os.kill(victim.pid, signal.SIGKILL)),
                attempt(lambda: os.kill(victim.pid, signal.SIGSTOP)),
                attempt(lambda: os.kill(victim.pid, 0)),
                attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(victim.pid), signal.SIGKILL)),
            ],
            scratch,
            isolate=isolate,
        )
        assert victim.poll() is None
        assert "T" not in Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        victim.kill()
    assert all(each in ("EPERM", "ESRCH") for each in found), found


@pytest.mark.parametrize("isolate", LEVELS)
def test_the_memory_and_the_environment_of_others_stay_unread(scratch: Path, isolate: bool) -> None:
    needs("landlock")
    environment = {"OPENAI_API_KEY": SECRET}
    with subprocess.Popen(["/bin/sleep", "60"], env=environment) as victim:
        own = Path(f"/proc/{victim.pid}/environ")
        while SECRET.encode() not in own.read_bytes():
            time.sleep(0.01)

        def body() -> list[str]:
            found = []
            for file in Path("/proc").glob("[0-9]*/environ"):
                with contextlib.suppress(OSError):
                    if SECRET.encode() in file.read_bytes():
                        found.append(str(file))
            for name in ("mem", "maps", "root/etc/passwd", "cwd/x", "fd/0"):
                with contextlib.suppress(OSError), open(f"/proc/{victim.pid}/{name}", "rb"):
                    found.append(name)
            return found

        found, _ = confined(body, scratch, isolate=isolate)
        victim.kill()
    assert found == []


CALLS = {  # by x86-64 numbers
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "bpf": 321,
    "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "mount": 165, "umount2": 166,
    "pivot_root": 155, "chroot": 161, "setns": 308, "unshare": 272, "io_uring_setup": 425, "connect": 42,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_calls_that_lead_out_are_refused(scratch: Path, isolate: bool) -> None:
    needs("seccomp")
    if platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86-64")

    def body() -> dict[str, int]:
        libc = ctypes.CDLL(None, use_errno=True)
        found = {}
        for name, number in CALLS.items():
            ctypes.set_errno(0)
            libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 5)
            found[name] = ctypes.get_errno()
        return found

    found, _ = confined(body, scratch, isolate=isolate)
    assert {name: errno.errorcode.get(code) for name, code in found.items() if code != errno.EPERM} == {}


@pytest.mark.slow
def test_a_namespace_contains_no_other_process(scratch: Path) -> None:
    needs("namespaces")

    def body() -> list[Any]:
        interfaces = Path("/proc/net/dev").read_text().splitlines()[2:]
        return [os.getpid(), [e for e in os.listdir("/proc") if e.isdigit()], len(interfaces)]

    (pid, seen, interfaces), _ = confined(body, scratch)
    assert (pid, seen) == (2, ["1", "2"])
    assert interfaces <= 1, "the loopback, and even that is down"


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_all_capabilities_are_dropped_for_good(scratch: Path, isolate: bool) -> None:
    """Root in a container has some, and every user has all of them in a new namespace."""

    def capabilities(status: str) -> list[str]:
        return [line for line in status.splitlines() if line.startswith(("CapPrm", "CapEff"))]

    def body() -> list[list[str]]:
        child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
        return [capabilities(text) for text in (Path("/proc/self/status").read_text(), child)]

    found, _ = confined(body, scratch, isolate=isolate)
    none = ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000"]
    assert found == [none, none]
