"""Starts processes in their own namespaces for users, processes, network, mounts and IPC.

Nothing outlives the first process of the namespaces, there is no network, no other process is visible, and
all mounts are read-only except one folder. If the machine denies namespaces to an unprivileged user,
processes start without them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from evaluators.base.cause import cause_of
from evaluators.system.process_tree import children, die_with_parent, kill_tree, rename, require_success

CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
SYS_MOUNT_SETATTR, MOUNT_ATTR_RDONLY, AT_RECURSIVE, AT_FDCWD = 442, 1, 0x8000, -100
MOST_BYTES = 2**16

_libc = ctypes.CDLL(None, use_errno=True)


def spawn(
    child: Callable[[str], None],
    *,
    isolate: bool,
    writable: Path | None = None,
    hidden: Iterable[str] = (),
    name: str = "confined",
) -> int:
    """Forks; the child runs `child(level)` and exits. Returns the pid to watch and to kill. All processes
    have the `name`.

    With `isolate`, and if namespaces are available, the child gets its own: files are read-only except below
    `writable`, `hidden` paths are empty, and when the child ends, the kernel ends everything that it started.
    `level` is then "namespaces", otherwise "limits". The watched process ends with the child's exit status,
    or 128 plus the signal that ended it.

    All of them end whenever this process ends, even if they are stopped; `spawn` returns once that is
    guaranteed. If namespaces are available but cannot be entered this time, the process dies with that error
    in its output, so that no candidate is silently confined less than the others.
    """
    bound, binding = os.pipe()

    def bound_child(level: str) -> None:
        os.write(binding, b"1")
        os.close(binding)
        child(level)

    pid = _fork_bound()
    if pid:
        os.close(binding)
        os.read(bound, 1)  # or nothing, if they have died already
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
        traceback.print_exc()  # into the child's own output, which is reported when it has died
    finally:
        os._exit(70)


def has_namespaces() -> bool:
    """Whether this machine lets us create the namespaces."""
    return not why_no_namespaces()


@cache
def why_no_namespaces() -> str:
    """Why this machine does not let us create the namespaces; "" if it does. Tried once, in a child that does
    nothing else."""
    output = os.memfd_create("namespaces", os.MFD_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            try:
                sys.stderr = os.fdopen(output, "w", 1, closefd=False)
                _enter_namespaces()
                _start_init(lambda _: None, Path("/tmp"), [])
            except OSError:
                traceback.print_exc()
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1] == 0:
            return ""
        return cause_of(os.pread(output, MOST_BYTES, 0).decode(errors="replace")) or "the attempt was ended"
    finally:
        os.close(output)


def runner_of(pid: int) -> int:
    """The process that runs the candidate, among those that `spawn` started: the first below process 1 of
    their namespace, or `pid` itself."""
    below = children(pid)
    if below and _is_init(below[0]):
        return children(below[0])[0]
    return pid


def kill_spawned(pid: int) -> None:
    """Sends SIGKILL to everything that `spawn` started. In a PID namespace only its first process is killed:
    its end, which `pid` waits for, comes after all others have ended and the GPU has freed their memory."""
    below = children(pid)
    if below and _is_init(below[0]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(below[0], signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)  # it may have been stopped with the others, and must see that end
    else:
        kill_tree(pid)


def _fork_bound() -> int:
    """`os.fork`, but the child ends with this process: the child first asks the kernel for that, and
    continues only if its parent is still there to receive its message."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        return pid
    try:
        os.close(reader)
        die_with_parent()
        os.write(writer, b"1")
        os.close(writer)
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
    flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS
    require_success(_libc.unshare(flags), "no namespaces")
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
    """Runs the child in a separate process, because process 1 ignores the signals by which a crash ends other
    processes."""
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
    """Waits for the child, reaps orphans, and exits as the child did."""
    os.closerange(0, 1024)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def _mount_anew(writable: Path | None, hidden: list[str]) -> None:
    """Makes all mounts read-only except `writable`, and mounts a `/proc` for this namespace: CUDA looks up
    its own process there, writes to it, and does not start if it is not found. Raises OSError."""
    _mount(None, b"/", None, MS_REC | MS_PRIVATE)
    _mount(b"proc", b"/proc", b"proc", 0)
    for path in hidden:
        with contextlib.suppress(OSError):  # gone by now
            if os.path.isdir(path):
                _mount(b"tmpfs", path.encode(), b"tmpfs", 0)
            else:
                _mount(os.devnull.encode(), path.encode(), None, MS_BIND)
    if writable is not None:
        scratch = bytes(writable)
        # Recursive, because what is mounted below must not come to light where it is not.
        _mount(scratch, scratch, None, MS_BIND | MS_REC)
        _set_read_only(b"/", True)
        _set_read_only(scratch, False)
        _set_read_only(b"/proc", False)


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int) -> None:
    status = _libc.mount(source, target, kind, ctypes.c_ulong(flags), None)
    require_success(status, f"mount on {target.decode()}")


def _set_read_only(path: bytes, read_only: bool) -> None:
    """`mount_setattr`; recursive if the mount becomes read-only."""
    change = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY * read_only, MOUNT_ATTR_RDONLY * (not read_only), 0, 0)
    flags = AT_RECURSIVE if read_only else 0
    size = ctypes.c_size_t(ctypes.sizeof(change))
    status = _libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, flags, ctypes.byref(change), size)
    require_success(status, f"mount_setattr on {path.decode()}")
