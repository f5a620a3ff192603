"""Fork servers that are forked from one per node: who starts it, who may connect, and how all of them end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evaluators.build.builder import runner_spec
from evaluators.isolation.confinement import PR_SET_NO_NEW_PRIVS
from evaluators.records.problem import Problem
from evaluators.runner import node_fork_server as node_fork_server_module
from evaluators.runner.fork_server import ForkServer
from evaluators.runner.messages import Import
from evaluators.runner.node_fork_server import NodeForkServer, new_fork_server
from evaluators.system.channel import Channel, ChannelClosed
from evaluators.system.process_tree import PR_SET_CHILD_SUBREAPER
from tests.evaluators.conftest import LEVELS, Marked, gone

pytestmark = pytest.mark.slow

PROBLEM = Problem(name="file/double", source="class Model: ...")


@pytest.fixture
def node_fork_server(tmp_path: Path, marked: Marked) -> Iterator[NodeForkServer]:
    started = NodeForkServer(tmp_path)
    yield started
    started.close()
    assert gone(marked)


def hatched(root: Path) -> ForkServer:
    """A fork server of a running node's fork server."""
    fork_server, own = new_fork_server(root)
    assert own is None
    return fork_server


def answer_of(fork_server: ForkServer, scratch: Path, source: str, *, isolate: bool = True) -> Any:
    """What a kernel's module wrote to `found.json` when it was imported."""
    (scratch / "kernel.py").write_text(f"{source}\nclass ModelNew: ...")
    child = fork_server.fork(
        runner_spec(scratch, role="candidate", cpu_s=60, environment={}), isolate=isolate
    )
    child.channel.receive(30)
    child.channel.send(Import(problem=PROBLEM, architecture="").message())
    assert child.channel.receive(30) == {"op": "imported"}
    fork_server.end(child)
    return json.loads((scratch / "found.json").read_text())


def test_fork_servers_of_a_node_fork_server_have_torch_and_no_open_files(
    node_fork_server: NodeForkServer, tmp_path: Path, scratch: Path
) -> None:
    fork_servers = [hatched(tmp_path) for _ in range(2)]
    source = """
import json, os, sys
found = ["torch" in sys.modules, os.listdir("/proc/self/fd")]
json.dump(found, open("found.json", "w"))
"""
    for fork_server in fork_servers:
        has_torch, descriptors = answer_of(fork_server, scratch, source)
        assert has_torch is True
        assert len(descriptors) <= 6, "its channel, its output, and those of the listing and the writing"
        fork_server.close()


def test_of_many_that_need_one_a_single_one_starts_it(tmp_path: Path, marked: Marked) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: new_fork_server(tmp_path), range(8)))
    node_fork_servers = [own for _, own in found if own is not None]
    assert len(node_fork_servers) == 1
    assert len({fork_server.pid for fork_server, _ in found}) == 8
    for fork_server, _ in found:
        fork_server.close()
    node_fork_servers[0].close()
    assert gone(marked)


def test_a_fork_server_continues_without_its_node_fork_server(
    tmp_path: Path, scratch: Path, marked: Marked
) -> None:
    first, own = new_fork_server(tmp_path)
    assert own is not None
    own.close()
    answer = "import json\njson.dump(1, open('found.json', 'w'))"
    assert answer_of(first, scratch, answer) == 1
    second, other = new_fork_server(tmp_path)
    assert other is not None, "another one was started"
    assert answer_of(second, scratch, answer) == 1
    first.close()
    second.close()
    other.close()
    assert gone(marked)


OWNER = """
import sys, time
from pathlib import Path
from evaluators.runner.node_fork_server import new_fork_server
found = new_fork_server(Path(sys.argv[1]))
print("up", flush=True)
time.sleep(600)
"""


def test_all_end_with_the_process_that_has_them(tmp_path: Path, marked: Marked) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert len(marked()) == 3
        owner.send_signal(signal.SIGKILL)
    assert gone(marked)


def test_a_fork_server_that_does_not_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> tuple[subprocess.Popen[bytes], Channel]:
        return subprocess.Popen(["true"]), Channel.pair()[0]

    monkeypatch.setattr(node_fork_server_module, "start_module", start)
    with pytest.raises(ChannelClosed, match="the node's fork server has died"):
        new_fork_server(tmp_path)


@pytest.mark.parametrize("isolate", LEVELS)
def test_no_candidate_can_connect(
    node_fork_server: NodeForkServer, tmp_path: Path, scratch: Path, isolate: bool
) -> None:
    fork_server = hatched(tmp_path)
    source = f"""
import json, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
    try:
        attempt.connect({node_fork_server_module._address(tmp_path)!r})
        found = "connected"
    except OSError as error:
        found = type(error).__name__
json.dump(found, open("found.json", "w"))
"""
    assert answer_of(fork_server, scratch, source, isolate=isolate) in (
        "PermissionError",
        "ConnectionRefusedError",
    )
    fork_server.close()


def test_another_users_node_fork_server_is_not_used(
    node_fork_server: NodeForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hatched(tmp_path).close()
    address, uid = node_fork_server_module._address(tmp_path), os.getuid()
    monkeypatch.setattr(node_fork_server_module, "_address", lambda root: address)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(ChannelClosed, match="another user's"):
        new_fork_server(tmp_path)


GIVES_UP = """
import sys
from pathlib import Path
from evaluators.runner import node_fork_server
from evaluators.system.process_tree import prctl

prctl(int(sys.argv[2]), 1)
channel = node_fork_server._connect(Path(sys.argv[1]))
print(channel.receive(30))
"""


def test_a_process_without_privileges_gets_no_fork_server(
    node_fork_server: NodeForkServer, tmp_path: Path
) -> None:
    """In case nothing else confines a candidate that finds the address."""
    said = [
        subprocess.run(
            [sys.executable, "-c", GIVES_UP, str(tmp_path), str(option)],
            capture_output=True,
            text=True,
            check=False,
        )
        for option in (PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER)
    ]
    assert "ChannelClosed" in said[0].stderr
    assert "'op': 'ready'" in said[1].stdout
