"""What a fork server's runners have, and how their end is reported."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluators.build.builder import runner_spec
from evaluators.isolation import confinement, namespaces
from evaluators.records.problem import Problem
from evaluators.runner.fork_server import ForkServer
from evaluators.runner.messages import Import
from evaluators.system.channel import Channel
from tests.evaluators.conftest import LEVELS, Marked, gone

pytestmark = pytest.mark.slow

PROBLEM = Problem(name="file/double", source="class Model: ...")
SECRET = "sk-planted-for-the-test"


@pytest.fixture(scope="module")
def fork_server(marked: Marked) -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", SECRET)
        started = ForkServer.start(confinement.clean_environment())
    yield started
    started.close()
    assert gone(marked)


LOOK = f"""
import json, os, tempfile
from pathlib import Path

found = [name for name, value in os.environ.items() if {SECRET!r} in value]
for file in Path("/proc").glob("[0-9s]*/environ"):
    try:
        if {SECRET.encode()!r} in file.read_bytes():
            found.append(str(file))
    except OSError:
        pass
fds = []
for entry in os.listdir("/proc/self/fd"):
    try:
        fds.append([int(entry), os.readlink(f"/proc/self/fd/{{entry}}")])
    except OSError:
        pass
Path("found.json").write_text(json.dumps([found, fds, tempfile.gettempdir(), os.getcwd(), os.getppid()]))

class ModelNew: ...
"""


@pytest.mark.parametrize("isolate", LEVELS)
def test_a_fork_servers_runner_has_no_secret_and_no_descriptor_of_others(
    fork_server: ForkServer, scratch: Path, isolate: bool
) -> None:
    (scratch / "kernel.py").write_text(LOOK)
    child = fork_server.fork(
        runner_spec(scratch, role="candidate", cpu_s=60, environment={}), isolate=isolate
    )
    assert "limits" in child.channel.receive(30)["isolation"]
    child.channel.send(Import(problem=PROBLEM, architecture="").message())
    assert child.channel.receive(30) == {"op": "imported"}
    fork_server.end(child)
    found, fds, temporary, folder, parent = json.loads((scratch / "found.json").read_text())
    assert found == []
    assert temporary == folder == str(scratch)
    names = dict(fds)
    assert names[0] == "/dev/null"
    assert names[1] == names[2] == "/memfd:output (deleted)"
    assert names[3].startswith("socket:")
    assert [name for fd, name in fds if fd > 3 and not name.startswith("/proc/")] == []
    if isolate and namespaces.has_namespaces():
        assert parent == 1, "its parent is its namespace's first process"


def test_orders_that_arrive_together_are_all_executed(fork_server: ForkServer, scratch: Path) -> None:
    """A kill right before the next fork, as after a kernel that took long to kill."""
    ours, theirs = Channel.pair()
    spec = runner_spec(scratch, role="candidate", cpu_s=60, environment={})
    orders = [
        {"op": "kill", "pid": 1},
        {"op": "fork", "spec": spec, "isolate": True},
        {"op": "kill", "pid": 1},
    ]
    data = b"".join(json.dumps(order).encode() + b"\n" for order in orders)
    with open(os.devnull, "w") as output:
        socket.send_fds(fork_server.channel._socket, [data], [theirs.fileno(), output.fileno()])
    theirs.close()
    pid = fork_server.channel.receive(10)["pid"]
    ours.receive(30)
    ours.close()
    assert fork_server.channel.receive(10) == {"op": "exited", "pid": pid, "code": 0}


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
class ModelNew: ...
"""


@pytest.mark.parametrize("isolate", LEVELS)
@pytest.mark.parametrize("end", ["killed", "exits", "closes"])
def test_nothing_survives_a_fork_servers_runner(
    fork_server: ForkServer, scratch: Path, marked: Marked, isolate: bool, end: str
) -> None:
    before = len(marked())
    ending = "\nos._exit(5)" if end == "exits" else ""
    (scratch / "kernel.py").write_text(DAEMON + ending)
    child = fork_server.fork(
        runner_spec(scratch, role="candidate", cpu_s=60, environment={}), isolate=isolate
    )
    child.channel.receive(30)
    child.channel.send(Import(problem=PROBLEM, architecture="").message())
    if end == "exits":
        while child.exit_code is None:
            fork_server.pump()
        assert child.exit_code == 5
    else:
        assert child.channel.receive(30) == {"op": "imported"}
        assert len(marked()) > before, "the daemon never lived"
        if end == "closes":
            child.channel.close()
            while child.exit_code is None:
                fork_server.pump()
            assert child.exit_code == 0
    fork_server.end(child)
    assert gone(lambda: marked()[before:])


@pytest.mark.parametrize("isolate", LEVELS)
@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("os._exit(0)", 0),
        ("os._exit(7)", 7),
        ("os._exit(255)", 255),
        ("__import__('ctypes').string_at(0)", -signal.SIGSEGV),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_the_end_of_a_runner_is_reported(
    fork_server: ForkServer, scratch: Path, isolate: bool, ending: str, code: int
) -> None:
    (scratch / "kernel.py").write_text(f"import os\n{ending}")
    child = fork_server.fork(
        runner_spec(scratch, role="candidate", cpu_s=60, environment={}), isolate=isolate
    )
    child.channel.receive(30)
    child.channel.send(Import(problem=PROBLEM, architecture="").message())
    while child.exit_code is None:
        fork_server.pump()
    fork_server.end(child)
    if code == -signal.SIGABRT and isolate:
        # Process 1 of a namespace receives no signal from itself: glibc's abort then ends in a fault.
        assert child.exit_code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGILL, -signal.SIGTRAP)
    else:
        assert child.exit_code == code
