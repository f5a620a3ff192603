"""Zygotes that are forked from one of their node: who starts it, who may connect, and how all of them end."""

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
from evaluators.runner import node_fork_server as nest_module
from evaluators.runner.fork_server import Zygote
from evaluators.runner.node_fork_server import Nest, hatch
from evaluators.system.channel import Channel, ChannelClosed
from evaluators.system.process_tree import PR_SET_CHILD_SUBREAPER
from tests.evaluators.conftest import LEVELS, Marked, gone


@pytest.fixture
def nest(tmp_path: Path, marked: Marked) -> Iterator[Nest]:
    started = Nest(tmp_path)
    yield started
    started.close()
    assert gone(marked)


def hatched(root: Path) -> Zygote:
    """A zygote of a nest that is there."""
    zygote, own = hatch(root)
    assert own is None
    return zygote


def answer_of(zygote: Zygote, scratch: Path, source: str, *, isolate: bool = True) -> Any:
    """What a kernel's module has written to `found.json` when it was imported."""
    (scratch / "kernel.py").write_text(f"{source}\nclass ModelNew: ...")
    ward = zygote.fork(runner_spec(scratch, role="candidate", cpu_s=60, environment={}), isolate=isolate)
    ward.channel.receive(30)
    ward.channel.send({"op": "import", "problem": {}, "architecture": ""})
    assert ward.channel.receive(30) == {"op": "imported"}
    zygote.end(ward)
    return json.loads((scratch / "found.json").read_text())


def test_zygotes_of_a_nest_have_torch_and_hold_nothing_open(
    nest: Nest, tmp_path: Path, scratch: Path
) -> None:
    zygotes = [hatched(tmp_path) for _ in range(2)]
    source = """
import json, os, sys
found = ["torch" in sys.modules, os.listdir("/proc/self/fd")]
json.dump(found, open("found.json", "w"))
"""
    for zygote in zygotes:
        has_torch, descriptors = answer_of(zygote, scratch, source)
        assert has_torch is True
        assert len(descriptors) <= 6, "its channel, its output, and those of the listing and the writing"
        zygote.close()


def test_of_many_that_need_one_a_single_one_starts_it(tmp_path: Path, marked: Marked) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: hatch(tmp_path), range(8)))
    nests = [own for _, own in found if own is not None]
    assert len(nests) == 1
    assert len({zygote.pid for zygote, _ in found}) == 8
    for zygote, _ in found:
        zygote.close()
    nests[0].close()
    assert gone(marked)


def test_a_zygote_goes_on_without_its_nest(tmp_path: Path, scratch: Path, marked: Marked) -> None:
    first, own = hatch(tmp_path)
    assert own is not None
    own.close()
    answer = "import json\njson.dump(1, open('found.json', 'w'))"
    assert answer_of(first, scratch, answer) == 1
    second, other = hatch(tmp_path)
    assert other is not None, "another one was started"
    assert answer_of(second, scratch, answer) == 1
    first.close()
    second.close()
    other.close()
    assert gone(marked)


OWNER = """
import sys, time
from pathlib import Path
from evaluators.runner.node_fork_server import hatch
found = hatch(Path(sys.argv[1]))
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


def test_one_that_does_not_come_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> tuple[subprocess.Popen[bytes], Channel]:
        return subprocess.Popen(["true"]), Channel.pair()[0]

    monkeypatch.setattr(nest_module, "start_module", start)
    with pytest.raises(ChannelClosed, match="the node's zygote has died"):
        hatch(tmp_path)


@pytest.mark.parametrize("isolate", LEVELS)
def test_no_candidate_can_connect(nest: Nest, tmp_path: Path, scratch: Path, isolate: bool) -> None:
    zygote = hatched(tmp_path)
    source = f"""
import json, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
    try:
        attempt.connect({nest_module._address(tmp_path)!r})
        found = "connected"
    except OSError as error:
        found = type(error).__name__
json.dump(found, open("found.json", "w"))
"""
    assert answer_of(zygote, scratch, source, isolate=isolate) in (
        "PermissionError",
        "ConnectionRefusedError",
    )
    zygote.close()


def test_another_users_nest_is_not_used(nest: Nest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hatched(tmp_path).close()
    address, uid = nest_module._address(tmp_path), os.getuid()
    monkeypatch.setattr(nest_module, "_address", lambda root: address)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(ChannelClosed, match="another user's"):
        hatch(tmp_path)


GIVES_UP = """
import sys
from pathlib import Path
from evaluators.runner import node_fork_server
from evaluators.system.process_tree import prctl

prctl(int(sys.argv[2]), 1)
channel = node_fork_server._connect(Path(sys.argv[1]))
print(channel.receive(30))
"""


def test_who_has_given_up_privileges_gets_no_zygote(nest: Nest, tmp_path: Path) -> None:
    """Where nothing else confines a candidate that finds the address."""
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
