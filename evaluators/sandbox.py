"""Confines the process that will import a candidate, with what this machine gives to an unprivileged user.

Four mechanisms, each probed: namespaces for users, processes, network, mounts and IPC (nothing outlives the
candidate, no network, no other process to be seen, all mounts read-only but for the scratch folder), Landlock
(the same for files, which are also unreadable outside system folders), seccomp (no connections, no ptrace, no
io_uring, no new namespaces) and resource limits. What was reached is the isolation level, recorded with
every evaluation.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

MAX_FILE_BYTES = 2 * 2**30
LEVELS = ("limits", "landlock", "seccomp", "namespaces")
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, 2**64 - 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
SYS_MOUNT_SETATTR, MOUNT_ATTR_RDONLY, AT_RECURSIVE, AT_FDCWD = 442, 1, 0x8000, -100
SYS_TGKILL = 234 if platform.machine() == "x86_64" else 131
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


def spawn(
    child: Callable[[str], None], *, isolate: bool, writable: Path | None = None, hidden: Iterable[str] = ()
) -> int:
    """Forks; the child runs `child(level)` and exits. Returns the pid to watch and to kill.

    With `isolate` and where namespaces can be had, the child lives in namespaces of its own: all files are
    read-only but below `writable`, those `hidden` are empty, and when it ends, the kernel ends everything it
    started. `level` is "namespaces" then, otherwise "limits". The watched process ends with the child's exit
    status, or 128 plus the signal that ended it. All of them end with this process, whenever that is, also
    when they are stopped; returns when that is sure.
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
        os.setsid()
        if isolate and has_namespaces() and _enter_namespaces():
            _start_init(bound_child, writable, list(hidden))
        else:
            bound_child("limits")
        os._exit(0)
    except BaseException:
        traceback.print_exc()  # into the child's own output, which is told when it died
    finally:
        os._exit(70)


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
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(telling, b"1")
        os.close(telling)
    except OSError:
        os._exit(70)
    return 0


@cache
def has_namespaces() -> bool:
    """Whether this machine lets us make the namespaces; tried once, in a child that does nothing else."""
    pid = os.fork()
    if pid == 0:
        try:
            if _enter_namespaces():
                _start_init(lambda _: None, Path("/tmp"), [])
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def confine(
    scratch: Path,
    *,
    readable: Iterable[Path] = (),
    devices: Iterable[Path] = (),
    cpu_s: int,
    max_processes: int,
) -> list[str]:
    """Confines this process and all its children for good. Returns the names of the mechanisms in force.

    Files: reading below system folders, the Python installation and `readable`; writing below `scratch`
    and to `devices`, beside those that every program needs. `cpu_s` bounds the CPU seconds of each process,
    `max_processes` their number.
    """
    _be_watchable()
    _set_limits(cpu_s, max_processes)
    reached = ["limits"]
    if _restrict_files(scratch, readable, devices):
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
    found: list[int] = []
    todo = [pid]
    while todo:
        below = _children(todo.pop())
        found += below
        todo += below
    return found


def _children(pid: int) -> list[int]:
    if not _has_children_files():
        return [each for each, parent in _parents().items() if parent == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


@cache
def _has_children_files() -> bool:
    return os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents[int(entry)] = int(fields[1])
    return parents


def stop_tree(pid: int) -> set[int]:
    """Stops `pid` and everything below it, and what they started meanwhile; returns who was reached. Until
    they are woken up they do not change, but for who is killed."""
    reached: set[int] = set()
    for _ in range(100):
        found = {pid, *descendants(pid)} - reached
        if not found:
            break
        stop_all(found)
        reached |= found
    return reached


def stop_all(pids: Iterable[int]) -> None:
    """Stops each that is still there, by each of its threads: told to the process, all of them would go on
    until the one thread that the system picks has got a core."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                _libc.syscall(SYS_TGKILL, pid, int(thread), signal.SIGSTOP)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Sends a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def spread_threads(pids: Iterable[int]) -> list[int]:
    """Gives each thread of each of these processes a core of its own as far as there are enough.

    Stopped threads would otherwise wake up on one core and wait for one another's time slice (4 ms) while
    they spin. Returns the processes with several threads, whose first threads `allow_all_cores` is to set
    free once they run: what they start is not to stay on their core.
    """
    cores = sorted(os.sched_getaffinity(0))
    leaders = []
    for each in pids:
        with contextlib.suppress(OSError):
            threads = sorted(int(thread) for thread in os.listdir(f"/proc/{each}/task"))
            if len(threads) > 1:
                leaders.append(each)
                for place, thread in enumerate(threads):
                    os.sched_setaffinity(thread, {cores[place % len(cores)]})
    return leaders


def allow_all_cores(pids: Iterable[int]) -> None:
    """Lets the first threads of these processes run wherever this process may."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, os.sched_getaffinity(0))


def kill_spawned(pid: int) -> None:
    """SIGKILL for all that `spawn` started. Of a PID namespace the first process is killed: its end, which
    `pid` waits for, comes after everybody else's, and after the GPU has their memory back."""
    below = _children(pid)
    if below and _is_init(below[0]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(below[0], signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)  # it may have been stopped with the others, and has to see that end
    else:
        kill_tree(pid)


def runner_of(pid: int) -> int:
    """The process that runs the candidate, of those that `spawn` started: the first below process 1 of their
    namespace, or `pid` itself."""
    below = _children(pid)
    if below and _is_init(below[0]):
        return _children(below[0])[0]
    return pid


def _is_init(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1] == "1"
    return False


def kill_tree(pid: int) -> None:
    """SIGKILL for `pid` and everything below it, repeated until nothing new appears."""
    for _ in range(100):
        below = descendants(pid)
        for each in (pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if not below:
            return


def kill_descendants() -> None:
    """SIGKILL for everything below this process: its threads that wait for those processes, or for a
    deadline of theirs, come to their end now."""
    signal_all(descendants(os.getpid()), signal.SIGKILL)


def memory_bytes(pids: Iterable[int], shared_with_us: int = 0) -> int:
    """Memory that processes hold together: their anonymous pages, and shared memory, mapped or only open, but
    for `shared_with_us` bytes in each."""
    private = mapped = 0
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError, KeyError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            private += int(fields["RssAnon"].split()[0]) * 1024
            mapped += max(0, int(fields["RssShmem"].split()[0]) * 1024 - shared_with_us)
            for entry in os.scandir(f"/proc/{pid}/fd"):
                if os.readlink(entry.path).startswith("/memfd:"):
                    about = os.stat(entry.path)
                    files[about.st_dev, about.st_ino] = about.st_blocks * 512
    return private + max(mapped, sum(files.values()))


def missing(reached: str, demanded: str) -> list[str]:
    """The mechanisms that the level `demanded` asks for and `reached` ("limits+seccomp", say) lacks.

    Levels build on one another in the order of LEVELS. Raises ValueError for an unknown one.
    """
    if demanded not in LEVELS:
        raise ValueError(f"evaluator.isolation is {demanded!r}; it must be one of {', '.join(LEVELS)}")
    return [each for each in LEVELS[: LEVELS.index(demanded) + 1] if each not in reached.split("+")]


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


def _be_watchable() -> None:
    """Our own processes may look at this one's memory use and threads (it may not look at others)."""
    _prctl(PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError):  # a kernel without Yama
        _prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)


def _drop_capabilities() -> None:
    """For a user who is root: with CAP_PERFMON alone, other processes' environments can be read in `/proc`
    in spite of Landlock (Linux 6.15 and later)."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, none) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


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


def _restrict_files(scratch: Path, readable: Iterable[Path], devices: Iterable[Path]) -> bool:
    try:
        from landlockpy import AccessFS, LandlockError, Ruleset, Scope
    except ImportError:
        return False
    read = AccessFS.READ_FILE | AccessFS.READ_DIR | AccessFS.EXECUTE
    device = AccessFS.READ_FILE | AccessFS.WRITE_FILE | AccessFS.IOCTL_DEV | AccessFS.READ_DIR
    inside = ~(AccessFS.MAKE_BLOCK | AccessFS.MAKE_CHAR | AccessFS.IOCTL_DEV)
    ours = Path(__file__).resolve().parent  # not the folder around it: a checkout holds runs and notes
    installed = [Path(p) for p in (sys.prefix, sys.base_prefix, *sys.path) if p and Path(p) != ours.parent]
    try:
        with Ruleset(scoped=Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET) as rules:
            for path in {*(Path(p) for p in READABLE), *installed, ours, *readable}:
                if path.exists():
                    rules.allow_path(path, read if path.is_dir() else AccessFS.READ_FILE | AccessFS.EXECUTE)
            for path in (*map(Path, WRITABLE_DEVICES), *devices):
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
    rules.add_rule(denied, "prctl", pyseccomp.Arg(0, pyseccomp.EQ, PR_SET_DUMPABLE))
    for name in (
        "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "bpf", "perf_event_open",
        "userfaultfd", "keyctl", "add_key", "request_key", "mount", "umount2", "pivot_root", "chroot",
        "setns", "unshare", "io_uring_setup", "open_by_handle_at", "init_module", "finit_module",
        "kexec_load", "swapon", "reboot", "connect",
    ):  # fmt: skip
        rules.add_rule(denied, name)
    rules.load()
    return True
