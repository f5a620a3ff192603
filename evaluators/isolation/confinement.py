"""Confines the process that will import a candidate, with what this machine gives to an unprivileged user.

Four mechanisms, each probed: namespaces, in which it was started (see `namespaces.py`), Landlock (no writing
but to the scratch folder, no reading but of system folders), seccomp (no connections, no ptrace, no io_uring,
no new namespaces) and resource limits. What was reached is the isolation level, recorded with every
evaluation.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from evaluators import PACKAGE
from evaluators.system.process_tree import prctl

MAX_FILE_BYTES = 2 * 2**30
LEVELS = ("limits", "landlock", "seccomp", "namespaces")
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, 2**64 - 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522

SAFE_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "CC", "CXX", "CUDAHOSTCXX", "PYTHONPATH",
    "TORCH_CUDA_ARCH_LIST", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH",
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
"""The only variables that cross into the evaluator's own processes: a list of what is let in, so that a new
kind of secret stays out without anybody thinking of it."""

READABLE = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys", "/dev", "/nix", "/run/nvidia",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime",
    "/etc/nsswitch.conf", "/etc/nvidia", "/etc/passwd", "/etc/OpenCL",
)  # fmt: skip
WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


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


def confine(
    scratch: Path,
    *,
    readable: Iterable[Path] = (),
    devices: Iterable[Path] = (),
    cores: Collection[int] = (),
    cpu_s: int,
    max_processes: int,
) -> list[str]:
    """Confines this process and all its children for good. Returns the names of the mechanisms in force.

    Files: reading below system folders, the Python installation and `readable`; writing below `scratch`
    and to `devices`, beside those that every program needs. `cores`: the only ones to run on, all where there
    are none. `cpu_s` bounds the CPU seconds of each process, `max_processes` their number.
    """
    _be_watchable()
    if cores:
        os.sched_setaffinity(0, cores)
    _set_limits(cpu_s, max_processes)
    reached = ["limits"]
    if _restrict_files(scratch, readable, devices):
        reached.append("landlock")
    if _restrict_calls(("sched_setaffinity",) if cores else ()):
        reached.append("seccomp")
    _drop_capabilities()
    return reached


def missing(reached: str, demanded: str) -> list[str]:
    """The mechanisms that the level `demanded` asks for and `reached` ("limits+seccomp", say) lacks.

    Levels build on one another in the order of LEVELS. Raises ValueError for an unknown one.
    """
    if demanded not in LEVELS:
        raise ValueError(f"evaluator.isolation is {demanded!r}; it must be one of {', '.join(LEVELS)}")
    return [each for each in LEVELS[: LEVELS.index(demanded) + 1] if each not in reached.split("+")]


def _be_watchable() -> None:
    """Our own processes may look at this one's memory use and threads (it may not look at others)."""
    prctl(PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError):  # a kernel without Yama
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)


def _drop_capabilities() -> None:
    """For a user who is root: with CAP_PERFMON alone, other processes' environments can be read in `/proc`
    in spite of Landlock (Linux 6.15 and later)."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
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
    # Not the folder around the package: a checkout holds runs and notes.
    installed = [Path(p) for p in (sys.prefix, sys.base_prefix, *sys.path) if p and Path(p) != PACKAGE.parent]
    try:
        with Ruleset(scoped=Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET) as rules:
            for path in {*(Path(p) for p in READABLE), *installed, PACKAGE, *readable}:
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


def _restrict_calls(more: Iterable[str]) -> bool:
    """Closes the calls that no candidate needs, and `more`."""
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
        "kexec_load", "swapon", "reboot", "connect", *more,
    ):  # fmt: skip
        rules.add_rule(denied, name)
    rules.load()
    return True
