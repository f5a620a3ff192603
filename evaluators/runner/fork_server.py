"""Forks the processes that run candidates, from a process that has imported torch but not touched CUDA.

A fork takes milliseconds, while starting Python and importing torch takes seconds. The fork server starts
with a clean environment, so that no fork has a secret in its memory. Its owner talks to it over a channel:

                                                                         <- ready {pid}
    -> fork {spec, isolate} + 2 descriptors (the runner's channel, its output)   <- forked {pid}
    -> kill {pid}                                                        <- exited {pid, code}

`code` is the exit status, or minus the signal that ended the process. When its owner dies, so does the fork
server, and with it every runner.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evaluators import PACKAGE
from evaluators.isolation import namespaces, vendor_libraries
from evaluators.runner import runner_process
from evaluators.system import process_tree
from evaluators.system.channel import Channel, ChannelClosed, Message

ALSO_IMPORTED = ("triton.language", "setuptools")
"""Modules that candidates need, which take 0.2 and 0.1 s to import and do not look for a GPU. setuptools is
most of `torch.utils.cpp_extension`."""
PTXAS_ARCHITECTURES = (80, 86, 89, 90)
OUTPUT_BYTES = 64 * 2**20
KILL_AGAIN_S, GENTLE_S, END_S = 0.2, 2.0, 5.0


class Output:
    """What a process writes, kept in memory instead of on the console."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("output", os.MFD_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to pass on."""
        return self._fd

    def end(self, limit: int = 4000) -> str:
        """The last bytes, as text."""
        written = os.lseek(self._fd, 0, os.SEEK_CUR)  # the offset is shared with the process
        size = min(written, limit)
        return os.pread(self._fd, size, written - size).decode(errors="replace")

    def trim(self) -> None:
        """Frees the memory of what was written so far, if it is much."""
        if os.fstat(self._fd).st_blocks * 512 > OUTPUT_BYTES:
            os.ftruncate(self._fd, 0)  # the process continues at its offset: a hole uses no memory

    def close(self) -> None:
        """Closes this side's descriptor if it is open."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def start_module(
    module: str, environment: dict[str, str], *more: int, errors: Output | None = None
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Starts one of our modules as a process with exactly this environment; returns the process and a channel
    to it. The process gets the descriptors of its end and of `more` as arguments. Its standard error goes to
    `errors`, or to this process's."""
    ours, theirs = Channel.pair()
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), environment.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *map(str, (theirs.fileno(), *more))],
        env=environment | {"PYTHONPATH": path},
        pass_fds=(theirs.fileno(), *more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if errors is None else errors.fileno(),
    )
    theirs.close()
    return process, ours


class ChildProcess:
    """A runner, as seen by the process that requested it."""

    def __init__(self, channel: Channel, output: Output) -> None:
        self.channel, self.output = channel, output
        """The end to speak with the runner, to keep or to pass on, and its standard output and error."""
        self.pid = 0
        self.exit_code: int | None = None
        """None while it runs; the exit status, or minus the signal that ended it."""

    def close(self) -> None:
        """Closes this side's descriptors if they are open."""
        self.channel.close()
        self.output.close()


class ForkServer:
    """A fork server process and the runners it has forked. Not thread-safe."""

    def __init__(self, channel: Channel, process: subprocess.Popen[bytes] | None = None) -> None:
        """Waits until the fork server at the other end of the channel is ready. `process` is the fork server
        if it is a child of this process. Raises ChannelClosed if it does not start."""
        self.channel, self._process = channel, process
        self._children: dict[int, ChildProcess] = {}
        self.pid: int = self.channel.receive()["pid"]

    @classmethod
    def start(cls, environment: dict[str, str]) -> ForkServer:
        """Starts a fork server with exactly this environment. Raises ChannelClosed."""
        process, channel = start_module("evaluators.runner.fork_server", environment)
        return cls(channel, process)

    def fork(self, spec: dict[str, Any], *, isolate: bool = True) -> ChildProcess:
        """A new runner for the spec (see `runner_process.run`), confined before it does anything else."""
        ours, theirs = Channel.pair()
        child = ChildProcess(ours, Output())
        fds = (theirs.fileno(), child.output.fileno())
        self.channel.send({"op": "fork", "spec": spec, "isolate": isolate}, fds)
        theirs.close()
        while (answer := self.channel.receive())["op"] != "forked":
            self._note(answer)
        child.pid = answer["pid"]
        self._children[child.pid] = child
        return child

    def pump(self, readable: bool = True) -> None:
        """Reads the fork server's messages; `readable`: whether its channel is."""
        if readable:
            self._note(self.channel.receive())
        while self.channel.has_message():  # read together with another
            self._note(self.channel.receive())

    def is_alive(self) -> bool:
        """Whether the fork server lives, judging by its channel; reads its messages."""
        readable, _, _ = select.select([self.channel.fileno()], [], [], 0)
        try:
            self.pump(bool(readable))
        except ChannelClosed:
            return False
        return True

    def end(self, child: ChildProcess, timeout_s: float = 30.0) -> None:
        """Kills the runner and everything it started, and waits until they are gone."""
        deadline = time.monotonic() + timeout_s
        try:
            if child.exit_code is None:
                self.channel.send({"op": "kill", "pid": child.pid})
            while child.exit_code is None:
                self._note(self.channel.receive(max(0.0, deadline - time.monotonic())))
        finally:
            child.close()

    def close(self) -> None:
        """Ends the fork server and every runner."""
        for child in self._children.values():
            child.close()
        self.channel.finish(END_S)
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _note(self, message: Message) -> None:
        if message["op"] == "exited" and (child := self._children.pop(message["pid"], None)):
            child.exit_code = message["code"]


def main() -> None:
    """The fork server's process: serves until its parent closes the channel."""
    process_tree.die_with_parent()
    preload()
    serve(Channel.from_fd(int(sys.argv[1])))


def import_torch() -> None:
    """Imports torch a tenth faster than the statement alone: an import creates no garbage to collect."""
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.enable()


def preload() -> None:
    """Imports what runners need, once for all of them."""
    import_torch()
    for name in ALSO_IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

    vendor_libraries.loaded()
    vendor_libraries.hidden()


def serve(channel: Channel) -> None:
    """The main loop of a fork server, after its imports."""
    process_tree.rename("fork server")
    process_tree.become_subreaper()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake_write)
    channel.send({"op": "ready", "pid": os.getpid()})
    warm_up_triton()
    gc.freeze()  # saves each runner's one collection 0.12 s and a copy of torch's pages
    alive: set[int] = set()
    dying: dict[int, float] = {}
    with contextlib.suppress(ChannelClosed):
        while True:
            patience_s = KILL_AGAIN_S if dying else None
            readable, _, _ = select.select([channel.fileno(), wake_read], [], [], patience_s)
            if wake_read in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                _reap(channel, alive)
            if channel.fileno() in readable:
                _execute(channel, channel.receive(), alive, dying)
                while channel.has_message():  # read together with the first: `select` would not report them
                    _execute(channel, channel.receive(), alive, dying)
            dying = {pid: since for pid, since in dying.items() if pid in alive}
            if not readable:
                _kill_again(dying)
    for pid in alive:
        process_tree.kill_tree(pid)


def warm_up_triton() -> None:
    """Computes and caches what Triton would otherwise compute in every runner before its first launch: the
    checksum of Triton's files takes 0.3 s."""
    with contextlib.suppress(ImportError, AttributeError, OSError, RuntimeError):
        from triton.backends.nvidia.compiler import get_ptxas_version
        from triton.runtime.cache import triton_key

        triton_key()
        for architecture in PTXAS_ARCHITECTURES:  # Triton has one assembler up to 90, and another above
            get_ptxas_version(architecture)


def _execute(channel: Channel, order: Message, alive: set[int], dying: dict[int, float]) -> None:
    if order["op"] == "fork":
        fds, spec = channel.take_fds(2), order["spec"]
        pid = namespaces.spawn(
            lambda level: _become_runner(fds[0], fds[1], level, spec),
            name="runner",
            isolate=bool(order["isolate"]),
            writable=Path(spec["scratch"]),
            hidden=vendor_libraries.hidden() if spec.get("libraries") == "no_library" else (),
        )
        for fd in fds:
            os.close(fd)
        alive.add(pid)
        channel.send({"op": "forked", "pid": pid})
    elif order["op"] == "kill" and order["pid"] in alive:
        dying[order["pid"]] = time.monotonic()
        namespaces.kill_spawned(order["pid"])


def _kill_again(dying: dict[int, float]) -> None:
    """Kills runners that are still alive again, gently at first (see `kill_spawned`): on a busy machine one
    signal was occasionally not enough."""
    for pid, since in dying.items():
        if time.monotonic() - since < GENTLE_S:
            namespaces.kill_spawned(pid)
        else:
            process_tree.kill_tree(pid)


def _reap(channel: Channel, alive: set[int]) -> None:
    """Reaps dead processes, and kills what a dead runner left behind, whose orphans are now our children."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid not in alive:
            continue
        alive.discard(pid)
        # In this order: what the living start in between is no orphan.
        below = set(process_tree.descendants(os.getpid()))
        running = alive.union(*(process_tree.descendants(each) for each in alive)) if alive else set()
        for orphan in below - running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if code - 128 in signal.valid_signals():
            code = 128 - code  # how a namespace's process 1 reports the signal that ended it
        channel.send({"op": "exited", "pid": pid, "code": code})


def _become_runner(channel_fd: int, output_fd: int, level: str, spec: dict[str, Any]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    kept = os.dup2(channel_fd, 3)
    os.closerange(4, 4096)
    runner_process.run(Channel.from_fd(kept), level=level, spec=spec)


if __name__ == "__main__":
    main()
