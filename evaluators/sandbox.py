"""Confines the process that will import a candidate, with what this machine gives to an unprivileged user.

Four mechanisms, each probed: namespaces for users, processes, network, mounts and IPC (nothing outlives the
candidate, no network, no other process to be seen), Landlock (files are read-only but for the scratch folder,
and unreadable outside system folders), seccomp (no connections, no ptrace, no io_uring, no new namespaces)
and resource limits. What was reached is the isolation level, recorded with every evaluation.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

MAX_FILE_BYTES = 2 * 2**30
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
LINUX_CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

SAFE_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "CC", "CXX", "CUDAHOSTCXX", "PYTHONPATH",
    "TORCH_CUDA_ARCH_LIST", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH",
)  # fmt: skip
"""The only variables that cross into the evaluator's own processes: a list of what is let in, so that a new
kind of secret stays out without anybody thinking of it."""

READABLE = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys", "/dev", "/nix", "/run/nvidia",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime",
    "/etc/nsswitch.conf", "/etc/nvidia", "/etc/passwd", "/etc/OpenCL",
)  # fmt: skip
WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def clean_environment(scratch: Path | None = None) -> dict[str, str]:
    """The variables for a process of the evaluator: no secrets; with `scratch`, all caches inside it."""
    kept = {name: os.environ[name] for name in SAFE_VARIABLES if name in os.environ}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    if scratch is not None:
        kept |= scratch_variables(scratch)
    return kept


def scratch_variables(scratch: Path) -> dict[str, str]:
    """Points every cache and temporary folder that toolchains use into the scratch folder."""
    cache = str(scratch / "cache")
    return {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "XDG_CACHE_HOME": cache,
        "TORCH_EXTENSIONS_DIR": str(scratch / "torch_extensions"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "CUDA_CACHE_PATH": str(scratch / "cuda"),
    }


def spawn(child: Callable[[str], None], *, isolate: bool) -> int:
    """Forks; the child runs `child(level)` and exits. Returns the pid to watch and to kill.

    With `isolate` and where namespaces can be had, the child is process 1 of a PID namespace of its own:
    when it ends, the kernel ends everything it started. `level` is "namespaces" then, otherwise "limits".
    The watched process ends with the child's exit status or signal.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if isolate and has_namespaces() and _enter_namespaces():
            _init_of_namespace(child)
        else:
            child("limits")
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
            if _enter_namespaces():
                _init_of_namespace(lambda _: None)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def confine(scratch: Path, *, readable: Iterable[Path] = (), cpu_s: int, max_processes: int) -> list[str]:
    """Confines this process and all its children for good. Returns the names of the mechanisms in force.

    Files: reading below system folders, the Python installation and `readable`; writing below `scratch`
    and to devices. `cpu_s` bounds the CPU seconds of each process, `max_processes` their number.
    """
    _set_limits(cpu_s, max_processes)
    reached = ["limits"]
    if _restrict_files(scratch, readable):
        reached.append("landlock")
    if _restrict_calls():
        reached.append("seccomp")
    _drop_capabilities()
    return reached


def become_subreaper() -> None:
    """Orphans of this process's descendants become its children, so that it can find and end them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """SIGKILL for this process when its parent dies, however that happens."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, as far as `/proc` shows them."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_tree(pid: int) -> None:
    """SIGKILL for `pid` and everything below it, repeated until nothing new appears."""
    for _ in range(100):
        below = descendants(pid)
        for each in (pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if not below:
            return


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of the given processes together, shared pages counted for each."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _enter_namespaces() -> bool:
    """Moves this process into new user, network, IPC and mount namespaces, its next child into a PID one."""
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS) != 0:
        return False
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return True


def _init_of_namespace(child: Callable[[str], None]) -> None:
    """Runs the child as process 1 of the namespace; this process waits and ends the way the child did.

    `/proc` is mounted anew: CUDA looks its own process up there and does not start when it is not found.
    """
    inner = os.fork()
    if inner == 0:
        try:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if _libc.mount(b"proc", b"/proc", b"proc", 0, None) == 0:
                child("namespaces")
                os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    _close_descriptors()
    _, status = os.waitpid(inner, 0)
    if os.WIFSIGNALED(status):
        # Process 1 of a namespace cannot kill itself by signal; report what ended it in the exit status.
        os._exit(128 + os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _drop_capabilities() -> None:
    """For a user who is root: with CAP_PERFMON alone, other processes' environments can be read in `/proc`
    in spite of Landlock (Linux 6.15 and later)."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, none) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def _close_descriptors() -> None:
    os.closerange(0, 1024)


def _set_limits(cpu_s: int, max_processes: int) -> None:
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_NPROC: max_processes,
    }
    for which, value in wanted.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def _restrict_files(scratch: Path, readable: Iterable[Path]) -> bool:
    try:
        from landlockpy import AccessFS, LandlockError, Ruleset, Scope
    except ImportError:
        return False
    read = AccessFS.READ_FILE | AccessFS.READ_DIR | AccessFS.EXECUTE
    device = AccessFS.READ_FILE | AccessFS.WRITE_FILE | AccessFS.IOCTL_DEV | AccessFS.READ_DIR
    inside = ~(AccessFS.MAKE_BLOCK | AccessFS.MAKE_CHAR | AccessFS.IOCTL_DEV)
    ours = Path(__file__).resolve().parent  # not the folder around it: a checkout holds runs and notes
    installed = [Path(p) for p in (sys.prefix, sys.base_prefix, *sys.path) if p and Path(p) != ours.parent]
    devices = [Path(p) for p in WRITABLE_DEVICES] + list(Path("/dev").glob("nvidia*"))
    try:
        with Ruleset(scoped=Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET) as rules:
            for path in {*(Path(p) for p in READABLE), *installed, ours, *readable}:
                if path.exists():
                    rules.allow_path(path, read if path.is_dir() else AccessFS.READ_FILE | AccessFS.EXECUTE)
            for path in devices:
                if path.is_dir():
                    rules.allow_path(path, device)
                elif path.exists():
                    rules.allow_path(path, device & ~AccessFS.READ_DIR)
            rules.allow_path(scratch, inside)
            # CUDA names its threads there, and does not start when it cannot.
            rules.allow_path("/proc/self", read | AccessFS.WRITE_FILE | AccessFS.TRUNCATE)
            rules.restrict()
    except LandlockError:
        return False
    return True


def _restrict_calls() -> bool:
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError):
        return False  # the package or the libseccomp that it loads is missing
    denied = pyseccomp.ERRNO(errno.EPERM)
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    # Only Unix streams. NE, for a family with bits above the 32 that the kernel reads is denied by no EQ.
    rules.add_rule(denied, "socket", pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX))
    for call in ("socket", "socketpair"):
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):  # they reach any socket's path without `connect`
            rules.add_rule(denied, call, pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xF, kind))
    for name in (
        "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "bpf", "perf_event_open",
        "userfaultfd", "keyctl", "add_key", "request_key", "mount", "umount2", "pivot_root", "chroot",
        "setns", "unshare", "io_uring_setup", "open_by_handle_at", "init_module", "finit_module",
        "kexec_load", "swapon", "reboot", "connect",
    ):  # fmt: skip
        rules.add_rule(denied, name)
    rules.load()
    return True
