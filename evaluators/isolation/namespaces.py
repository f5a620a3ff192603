"""Starts processes in namespaces of their own, for users, processes, network, mounts and IPC.

Nothing outlives the first of them, there is no network and no other process to be seen, and all mounts are
read-only but for one folder. Where a machine gives no namespaces to an unprivileged user, they start without.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from evaluators.system.process_tree import children, die_with_parent, kill_tree, rename

CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
SYS_MOUNT_SETATTR, MOUNT_ATTR_RDONLY, AT_RECURSIVE, AT_FDCWD = 442, 1, 0x8000, -100

_libc = ctypes.CDLL(None, use_errno=True)


def spawn(
    child: Callable[[str], None],
    *,
    isolate: bool,
    writable: Path | None = None,
    hidden: Iterable[str] = (),
    name: str = "confined",
) -> int:
    """Forks; the child runs `child(level)` and exits. Returns the pid to watch and to kill. All of them have
    the `name`.

    With `isolate` and where namespaces can be had, the child lives in namespaces of its own: all files are
    read-only but below `writable`, those `hidden` are empty, and when it ends, the kernel ends everything it
    started. `level` is "namespaces" then, otherwise "limits". The watched process ends with the child's exit
    status, or 128 plus the signal that ended it. All of them end with this process, whenever that is, also
    when they are stopped; returns when that is sure. Where namespaces can be had and are not given this time,
    the process dies with that error in its output: nobody is confined less than the others without a word.
    """
    bound, binding = os.pipe()

    def bound_child(level: str) -> None:
        os.write(binding, b"1")
        os.close(binding)
        child(level)

    pid = _fork_bound()
    if pid:
        os.close(binding)
        os.read(bound, 1)  # or nothing, when they have died already
        os.close(bound)
        return pid
    try:
        os.close(bound)
        rename(name)
        os.setsid()
        if isolate and has_namespaces():
            _enter_namespaces()
            _start_init(bound_child, writable, list(hidden))
        else:
            bound_child("limits")
        os._exit(0)
    except BaseException:
        traceback.print_exc()  # into the child's own output, which is told when it died
    finally:
        os._exit(70)


@cache
def has_namespaces() -> bool:
    """Whether this machine lets us make the namespaces; tried once, in a child that does nothing else."""
    pid = os.fork()
    if pid == 0:
        try:
            _enter_namespaces()
            _start_init(lambda _: None, Path("/tmp"), [])
        except OSError:
            pass
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def runner_of(pid: int) -> int:
    """The process that runs the candidate, of those that `spawn` started: the first below process 1 of their
    namespace, or `pid` itself."""
    below = children(pid)
    if below and _is_init(below[0]):
        return children(below[0])[0]
    return pid


def kill_spawned(pid: int) -> None:
    """SIGKILL for all that `spawn` started. Of a PID namespace the first process is killed: its end, which
    `pid` waits for, comes after everybody else's, and after the GPU has their memory back."""
    below = children(pid)
    if below and _is_init(below[0]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(below[0], signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)  # it may have been stopped with the others, and has to see that end
    else:
        kill_tree(pid)


def _fork_bound() -> int:
    """`os.fork`, but the child ends with this process, whenever that is: it asks for its end first, and goes
    on only if somebody is still there to be told so."""
    told, telling = os.pipe()
    pid = os.fork()
    if pid:
        os.close(telling)
        os.read(told, 1)
        os.close(told)
        return pid
    try:
        os.close(told)
        die_with_parent()
        os.write(telling, b"1")
        os.close(telling)
    except OSError:
        os._exit(70)
    return 0


def _is_init(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1] == "1"
    return False


def _enter_namespaces() -> None:
    """Moves this process into new user, network, IPC and mount namespaces, its next child into a PID one.
    Raises OSError."""
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no namespaces: {os.strerror(number)}")
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _start_init(child: Callable[[str], None], writable: Path | None, hidden: list[str]) -> None:
    """Starts process 1 of the namespace and ends the way it does."""
    init = _fork_bound()
    if init == 0:
        try:
            _mount_anew(writable, hidden)
            _be_init(child)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    _end_like(init)


def _be_init(child: Callable[[str], None]) -> None:
    """Runs the child in a process of its own: process 1 ignores the signals that a crash ends others by."""
    pid = _fork_bound()
    if pid == 0:
        try:
            child("namespaces")
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    _end_like(pid)


def _end_like(pid: int) -> None:
    """Waits for the child, burying orphans, and exits as it did."""
    os.closerange(0, 1024)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def _mount_anew(writable: Path | None, hidden: list[str]) -> None:
    """Read-only mounts, but for `writable`, and a `/proc` of this namespace: CUDA looks its own process up
    there, writes to it, and does not start when it is not found. Raises OSError."""
    _mount(None, b"/", None, MS_REC | MS_PRIVATE)
    _mount(b"proc", b"/proc", b"proc", 0)
    for path in hidden:
        with contextlib.suppress(OSError):  # gone since it was looked for
            if os.path.isdir(path):
                _mount(b"tmpfs", path.encode(), b"tmpfs", 0)
            else:
                _mount(os.devnull.encode(), path.encode(), None, MS_BIND)
    if writable is not None:
        scratch = bytes(writable)
        _mount(scratch, scratch, None, MS_BIND)
        _set_read_only(b"/", True)
        _set_read_only(scratch, False)
        _set_read_only(b"/proc", False)


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int) -> None:
    if _libc.mount(source, target, kind, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount on {target.decode()}: {os.strerror(number)}")


def _set_read_only(path: bytes, read_only: bool) -> None:
    """`mount_setattr`; everything below, too, when it becomes read-only."""
    change = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY * read_only, MOUNT_ATTR_RDONLY * (not read_only), 0, 0)
    flags = AT_RECURSIVE if read_only else 0
    size = ctypes.c_size_t(ctypes.sizeof(change))
    if _libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, flags, ctypes.byref(change), size) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount_setattr on {path.decode()}: {os.strerror(number)}")
