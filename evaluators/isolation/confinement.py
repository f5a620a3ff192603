"""Confines the process that will import a candidate, as far as this machine lets an unprivileged user do so.

There are four mechanisms, each probed: the namespaces in which the process was started (see `namespaces.py`),
Landlock (writes only to the scratch folder, reads only from system folders), seccomp (no connections, ptrace,
io_uring or new namespaces) and resource limits. The mechanisms in force are the isolation level, which is
recorded with every evaluation.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from evaluators import PACKAGE
from evaluators.base.cause import first_line
from evaluators.isolation.namespaces import why_no_namespaces
from evaluators.system.process_tree import prctl, require_success

MAX_FILE_BYTES = 2 * 2**30
LEVELS = ("limits", "landlock", "seccomp", "namespaces")
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, 2**64 - 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522

HEADERS = ("CUTLASS_DIR", "THUNDERKITTENS_ROOT")
"""Variables with folders of headers that kernels may read."""
SAFE_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "CC", "CXX", "CUDAHOSTCXX", "PYTHONPATH",
    "TORCH_CUDA_ARCH_LIST", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH",
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
    "FIB_DATASET_PATH", "FLASHINFER_TRACE_DIR", "SOL_EXECBENCH_ROOT",  # folders of stored inputs
    *HEADERS,
)  # fmt: skip
"""The only variables that cross into the evaluator's own processes. A list of what is allowed keeps out new
kinds of secrets too."""

READABLE = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys", "/dev", "/nix", "/run/nvidia",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime",
    "/etc/nsswitch.conf", "/etc/nvidia", "/etc/passwd", "/etc/OpenCL",
)  # fmt: skip
WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def clean_environment(scratch: Path | None = None) -> dict[str, str]:
    """The variables for a process of the evaluator, without secrets. With `scratch`, all caches are inside
    it."""
    kept = {name: os.environ[name] for name in SAFE_VARIABLES if name in os.environ}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    if scratch is not None:
        kept |= scratch_variables(scratch)
    return kept


def scratch_variables(scratch: Path) -> dict[str, str]:
    """Variables that point every cache and temporary folder of the toolchains into the scratch folder."""
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
    """Confines this process and all its children permanently. Returns the names of the mechanisms in force.

    Reads are allowed below system folders, the Python installation and `readable`; writes below `scratch` and
    to `devices`, in addition to the devices that every program needs.

    Args:
        cores: the only cores to run on; all if empty.
        cpu_s: limit on the CPU seconds of each process.
        max_processes: limit on the number of processes.
    """
    _allow_inspection()
    if cores:
        os.sched_setaffinity(0, cores)
    set_limits(cpu_s, max_processes)
    reached = ["limits"]
    if not _restrict_files(scratch, readable, devices):
        reached.append("landlock")
    if not _restrict_calls(("sched_setaffinity",) if cores else ()):
        reached.append("seccomp")
    _drop_capabilities()
    return reached


def missing(reached: str, demanded: str) -> list[str]:
    """The mechanisms that the level `demanded` requires and `reached` (such as "limits+seccomp") lacks.

    Levels include one another in the order of LEVELS. Raises ValueError for an unknown level.
    """
    if demanded not in LEVELS:
        raise ValueError(f"evaluator.isolation is {demanded!r}; it must be one of {', '.join(LEVELS)}")
    return [each for each in LEVELS[: LEVELS.index(demanded) + 1] if each not in reached.split("+")]


@cache
def why_missing(reached: str) -> str:
    """Why mechanisms are missing from what was `reached`, such as "limits+seccomp", in one line; "" if none
    is. They are tried once more, in a process that does nothing else."""
    absent = missing(reached, LEVELS[-1])
    if not absent:
        return ""
    command = [sys.executable, "-P", "-c", f"from {__name__} import _try; _try()"]
    places = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            [*command, folder], env={**os.environ, "PYTHONPATH": places}, capture_output=True, check=False
        )
    try:
        reasons = json.loads(tried.stdout)
    except ValueError:
        reasons = {}
    return "; ".join(f"no {name}: {reasons.get(name) or 'the reason is unknown'}" for name in absent)


def _try() -> None:
    """Prints why each mechanism is not available to this process, which it confines."""
    reasons = {"namespaces": why_no_namespaces()}
    reasons["landlock"] = _restrict_files(Path(sys.argv[1]), [], [])
    reasons["seccomp"] = _restrict_calls(())
    print(json.dumps(reasons))  # noqa: T201


def _allow_inspection() -> None:
    """Lets our own processes inspect this one's memory use and threads. It cannot inspect others."""
    prctl(PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError):  # a kernel without Yama
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)


def _drop_capabilities() -> None:
    """For a user who is root: with CAP_PERFMON alone, other processes' environments can be read in `/proc`
    despite Landlock (Linux 6.15 and later)."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    require_success(_libc.capset(header, none), "capset")


def set_limits(cpu_s: int, max_processes: int) -> None:
    """Sets the resource limits of this process and its children, the weakest part of `confine`."""
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


def _restrict_files(scratch: Path, readable: Iterable[Path], devices: Iterable[Path]) -> str:
    """Returns why that is not possible, or ""."""
    try:
        from landlockpy import AccessFS, LandlockError, Ruleset, Scope
    except ImportError as error:
        return first_line(error)
    read = AccessFS.READ_FILE | AccessFS.READ_DIR | AccessFS.EXECUTE
    device = AccessFS.READ_FILE | AccessFS.WRITE_FILE | AccessFS.IOCTL_DEV | AccessFS.READ_DIR
    headers = (Path(os.environ[name]) for name in HEADERS if os.environ.get(name))
    inside = ~(AccessFS.MAKE_BLOCK | AccessFS.MAKE_CHAR | AccessFS.IOCTL_DEV)
    # Not the folder around the package: a checkout holds runs and notes.
    installed = [Path(p) for p in (sys.prefix, sys.base_prefix, *sys.path) if p and Path(p) != PACKAGE.parent]
    try:
        with Ruleset(scoped=Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET) as rules:
            for path in {*(Path(p) for p in READABLE), *installed, *headers, PACKAGE, *readable}:
                if path.exists():
                    rules.allow_path(path, read if path.is_dir() else AccessFS.READ_FILE | AccessFS.EXECUTE)
            for path in (*map(Path, WRITABLE_DEVICES), *devices):
                if path.is_dir():
                    rules.allow_path(path, device)
                elif path.exists():
                    rules.allow_path(path, device & ~AccessFS.READ_DIR)
            rules.allow_path(scratch, inside)
            # CUDA names its threads there, and does not start if it cannot.
            rules.allow_path("/proc/self", read | AccessFS.WRITE_FILE | AccessFS.TRUNCATE)
            rules.restrict()
    except LandlockError as error:
        return first_line(error)
    return ""


def _restrict_calls(more: Iterable[str]) -> str:
    """Blocks the system calls that no candidate needs, and `more`. Returns why that is not possible, or
    ""."""
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:
        return first_line(error)  # the package or the libseccomp that it loads is missing
    denied = pyseccomp.ERRNO(errno.EPERM)
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    # Only Unix streams. NE, because the kernel reads only 32 bits of the family: EQ would miss one with
    # higher bits.
    rules.add_rule(denied, "socket", pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX))
    for call in ("socket", "socketpair"):
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):  # these reach any socket's path without `connect`
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
    return ""
