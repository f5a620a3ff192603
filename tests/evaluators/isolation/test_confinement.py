"""The sandbox, tried out by real confined processes that do what a hostile kernel would do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evaluators.isolation import confinement, namespaces
from tests.evaluators.conftest import LEVELS

ROOT = Path(__file__).parents[3]
SECRET = "sk-planted-for-the-test"
REFUSED = ("EACCES", "EPERM", "EXDEV", "ESRCH", "EROFS", "ENETUNREACH")


def confined(
    body: Callable[[], Any],
    scratch: Path,
    *,
    isolate: bool = True,
    readable: tuple[Path, ...] = (),
    devices: tuple[Path, ...] = (),
    cores: tuple[int, ...] = (),
    cpu_s: int = 30,
) -> tuple[Any, list[str]]:
    """What `body` returns in a confined child, and the mechanisms that were in force."""
    read, write = os.pipe()

    def child(level: str) -> None:
        os.close(read)
        reached = confinement.confine(
            scratch, readable=readable, devices=devices, cores=cores, cpu_s=cpu_s, max_processes=4096
        )
        try:
            answer = body()
        except BaseException as error:
            answer = f"raised {error!r}"
        os.write(write, json.dumps([answer, [*reached, level]]).encode())

    pid = namespaces.spawn(child, isolate=isolate)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        data = answers.read()
    os.waitpid(pid, 0)
    assert data, "the confined process died"
    answer, reached = json.loads(data)
    return answer, reached


@cache
def mechanisms() -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        return tuple(confined(lambda: None, Path(folder))[1])


def needs(*wanted: str) -> None:
    for mechanism in wanted:
        if mechanism not in mechanisms():
            pytest.skip(f"this machine gives no {mechanism} to an unprivileged user")


def attempt(action: Callable[[], object]) -> str:
    """ "done", or the name of the error."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "file").write_text("secret")
    return path


@pytest.fixture
def home_file() -> Iterator[Path]:
    try:
        with tempfile.NamedTemporaryFile(dir=Path.home(), prefix=".ideatree-test-") as file:
            file.write(b"secret")
            file.flush()
            yield Path(file.name)
    except OSError as error:
        pytest.skip(f"the home cannot be written: {error}")


def test_some_level_is_reached_and_named() -> None:
    assert mechanisms()[0] == "limits"
    assert set(mechanisms()) <= {"limits", "landlock", "seccomp", "namespaces"}
    assert ("namespaces" in mechanisms()) == namespaces.has_namespaces()


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


@pytest.mark.skipif(not os.path.exists("/dev/ptmx"), reason="there is no device to try")
@pytest.mark.parametrize("isolate", LEVELS)
def test_devices_are_for_those_who_are_given_them(scratch: Path, isolate: bool) -> None:
    needs("landlock")
    device = Path("/dev/ptmx")

    def body() -> str:
        return attempt(lambda: os.open(device, os.O_RDWR))

    assert confined(body, scratch, isolate=isolate, devices=(device,))[0] == "done"
    assert confined(body, scratch, isolate=isolate)[0] in REFUSED


@pytest.mark.parametrize("isolate", LEVELS)
def test_what_lies_outside_cannot_be_changed(scratch: Path, outside: Path, isolate: bool) -> None:
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
        ROOT / "search" / "engine.py",
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
def test_what_a_kernel_needs_can_be_read(scratch: Path, outside: Path, isolate: bool) -> None:
    (scratch / "kernel.py").write_text("x")
    needed = [
        scratch / "kernel.py",
        ROOT / "evaluators" / "problem.py",
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


@pytest.mark.parametrize("isolate", LEVELS)
def test_children_are_confined_like_their_parent(scratch: Path, outside: Path, isolate: bool) -> None:
    needs("landlock", "seccomp")
    code = f"open({str(outside / 'file')!r})", "import socket; socket.socket()"

    def body() -> list[str]:
        run = (subprocess.run([sys.executable, "-c", c], capture_output=True, text=True) for c in code)
        return [done.stderr for done in run]

    found, _ = confined(body, scratch, isolate=isolate)
    assert all("PermissionError" in each for each in found), found


@pytest.mark.parametrize("isolate", LEVELS)
def test_nothing_can_be_connected_to(scratch: Path, outside: Path, isolate: bool) -> None:
    """Servers of ours that would answer: TCP, UDP, Unix sockets by path and by abstract name."""
    needs("seccomp")
    name = f"\0ideatree-test-{os.getpid()}"
    kinds: dict[str, tuple[int, int, Any]] = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "stream path": (socket.AF_UNIX, socket.SOCK_STREAM, str(outside / "stream")),
        "datagram path": (socket.AF_UNIX, socket.SOCK_DGRAM, str(outside / "datagram")),
        "stream name": (socket.AF_UNIX, socket.SOCK_STREAM, name),
        "datagram name": (socket.AF_UNIX, socket.SOCK_DGRAM, name),
    }
    with contextlib.ExitStack() as stack:
        servers = {}
        for each, (family, kind, address) in kinds.items():
            server = stack.enter_context(socket.socket(family, kind))
            server.bind(address)
            if kind == socket.SOCK_STREAM:
                server.listen()
            servers[each] = server
        addresses = {each: server.getsockname() for each, server in servers.items()}

        def reach(each: str) -> None:
            family, kind, _ = kinds[each]
            with socket.socket(family, kind) as client:
                if kind == socket.SOCK_STREAM:
                    client.settimeout(5)
                    client.connect(addresses[each])
                else:
                    client.sendto(b"leak", addresses[each])

        def pair(each: str) -> None:
            one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            one.sendto(b"leak", addresses[each])

        def body() -> dict[str, str]:
            found = {each: attempt(lambda each=each: reach(each)) for each in kinds}  # type: ignore[misc]
            found["pair"] = attempt(lambda: pair("datagram path"))
            return found

        for each in kinds:
            assert attempt(lambda each=each: reach(each)) == "done", "the server is none"  # type: ignore[misc]
        readable, _, _ = select.select(list(servers.values()), [], [], 0)
        for server in readable:
            server.recv(10) if server.type == socket.SOCK_DGRAM else server.accept()[0].close()
        found, _ = confined(body, scratch, isolate=isolate)
        heard = select.select(list(servers.values()), [], [], 0.1)[0]
    assert {each: word for each, word in found.items() if word not in REFUSED} == {}
    assert heard == []


SOCKET = {"x86_64": 41, "aarch64": 198}.get(platform.machine())


@pytest.mark.parametrize("isolate", LEVELS)
def test_no_socket_of_another_family_however_it_is_asked_for(scratch: Path, isolate: bool) -> None:
    needs("seccomp")
    if SOCKET is None:
        pytest.skip(f"the number of `socket` on {platform.machine()} is not known here")
    families = [*range(46), *(family + 2**32 for family in (socket.AF_INET, socket.AF_INET6))]

    def body() -> list[int]:
        libc = ctypes.CDLL(None, use_errno=True)
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)
        return [
            family
            for family in families
            for kind in kinds
            if libc.syscall(ctypes.c_long(SOCKET or 0), ctypes.c_long(family), ctypes.c_long(kind), 0) >= 0
        ]

    found, _ = confined(body, scratch, isolate=isolate)
    assert found == [socket.AF_UNIX]


@pytest.mark.parametrize("isolate", LEVELS)
def test_a_pair_of_its_own_can_be_had(scratch: Path, isolate: bool) -> None:
    def body() -> str:
        one, other = socket.socketpair()
        one.send(b"hello")
        return other.recv(5).decode()

    assert confined(body, scratch, isolate=isolate)[0] == "hello"


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


def test_a_namespace_holds_nobody_else(scratch: Path) -> None:
    needs("namespaces")

    def body() -> list[Any]:
        interfaces = Path("/proc/net/dev").read_text().splitlines()[2:]
        return [os.getpid(), [e for e in os.listdir("/proc") if e.isdigit()], len(interfaces)]

    (pid, seen, interfaces), _ = confined(body, scratch)
    assert (pid, seen) == (2, ["1", "2"])
    assert interfaces <= 1, "the loopback, and even that is down"


@pytest.mark.parametrize("isolate", LEVELS)
def test_limits_on_core_dumps_and_files(scratch: Path, isolate: bool) -> None:
    def body() -> list[Any]:
        with open(scratch / "large", "wb") as file:
            grown = attempt(lambda: os.ftruncate(file.fileno(), confinement.MAX_FILE_BYTES + 1))
            allowed = attempt(lambda: os.ftruncate(file.fileno(), confinement.MAX_FILE_BYTES))
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))
        except ValueError as error:
            refused = str(error)
        return [grown, allowed, resource.getrlimit(resource.RLIMIT_CORE), refused]

    found, _ = confined(body, scratch, isolate=isolate)
    assert found == ["EFBIG", "done", [0, 0], "not allowed to raise maximum limit"]


def test_who_may_use_some_cores_cannot_take_others(scratch: Path) -> None:
    every = sorted(os.sched_getaffinity(0))

    def body() -> list[object]:
        mine = sorted(os.sched_getaffinity(0))
        try:
            os.sched_setaffinity(0, every)
        except PermissionError:
            return [mine, "refused"]
        return [mine, sorted(os.sched_getaffinity(0))]

    (mine, then), reached = confined(body, scratch, cores=(every[-1],))
    assert mine == [every[-1]]
    assert then == ("refused" if "seccomp" in reached else every)
    assert confined(body, scratch)[0] == [every, every]


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_a_busy_loop_ends_at_its_limit_of_cpu_seconds(scratch: Path, isolate: bool) -> None:
    def child(level: str) -> None:
        confinement.confine(scratch, cpu_s=1, max_processes=4096)
        while True:
            pass

    pid = namespaces.spawn(child, isolate=isolate)
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGKILL)


@pytest.mark.parametrize(
    ("reached", "demanded", "lacking"),
    [
        ("limits", "limits", []),
        ("limits", "seccomp", ["landlock", "seccomp"]),
        ("limits+landlock+seccomp+namespaces", "namespaces", []),
        ("limits+namespaces", "namespaces", ["landlock", "seccomp"]),
    ],
)
def test_a_level_demands_all_mechanisms_up_to_it(reached: str, demanded: str, lacking: list[str]) -> None:
    assert confinement.missing(reached, demanded) == lacking


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of limits, landlock"):
        confinement.missing("limits", "everything")


def test_a_clean_environment_has_nothing_but_what_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "LD_PRELOAD",
        "X",
    ):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("PATH", "/bin")
    clean = confinement.clean_environment()
    assert SECRET not in clean.values()
    assert clean["PATH"] == "/bin"
    assert set(clean) <= {*confinement.SAFE_VARIABLES, "PYTHONDONTWRITEBYTECODE"}


def test_caches_and_homes_lie_in_the_scratch_folder(scratch: Path) -> None:
    clean = confinement.clean_environment(scratch)
    assert set(confinement.scratch_variables(scratch)) <= set(clean)
    assert clean["HOME"] == clean["TMPDIR"] == str(scratch)
    assert all(Path(v).is_relative_to(scratch) for v in confinement.scratch_variables(scratch).values())


@pytest.mark.parametrize("isolate", LEVELS)
def test_no_capability_is_left_and_none_comes_back(scratch: Path, isolate: bool) -> None:
    """Root in a container has some, every user has all of them in a namespace of its own."""

    def capabilities(status: str) -> list[str]:
        return [line for line in status.splitlines() if line.startswith(("CapPrm", "CapEff"))]

    def body() -> list[list[str]]:
        child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
        return [capabilities(text) for text in (Path("/proc/self/status").read_text(), child)]

    found, _ = confined(body, scratch, isolate=isolate)
    none = ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000"]
    assert found == [none, none]
