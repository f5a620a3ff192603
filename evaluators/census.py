"""Who did the computing: the kernel's own code, or a library.

On a GPU from the device's trace (`device_trace.py`), by the names of what ran. On a CPU from outside: the
instruction pointers of the runner's threads at unpredictable moments, and the files that they lie in. A decoy
that is launched beside the library's work does not help: it must take nine tenths of the time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evaluators import sandbox

OWN_SHARE = 0.9
"""Of the time spent computing, where the problem's policy is `no_library`."""
ENOUGH_SAMPLES = 30
LONGEST_S = 1.0
WATCHED_MS = 40.0

LIBRARY_KERNELS = re.compile(
    r"2at\d|\bat::|at_cuda_detail|3c10|c10::|pytorch_|fmha_|flash_fwd|flash_bwd|cudnn|cublas|_xmma_|^cutlass_|"
    r"^void cutlass__|cusparse|cusolver|cufft|(regular|vector)_fft|3cub|\bcub::|6thrust|\bthrust::|"
    r"nchwTo|nhwcTo|splitKreduce|gemv2|gemmk1|^triton_(poi|red|per|tem|spl|for|mm|convolution|helion)_"
)
MOVING_KERNELS = re.compile(
    r"direct_copy_kernel|bfloat16_copy_kernel|float16_copy_kernel|copy_kernel_cuda|FillFunctor|"
    r"CatArrayBatchedCopy|constant_pad|copy_device_to_device"
)
NEUTRAL_FILES = re.compile(
    r"/(libc|libm|ld-linux[^/]*|libpthread|libgomp[^/]*|libomp|libiomp5|libstdc\+\+|libgcc_s|libpython[^/]*|"
    r"libtorch_python|libc10|libcudart[^/]*|libcuda|python[^/]*|_ctypes[^/]*)(-[\w.]+)?(\.so[.\d]*)?$|^\[vdso\]$|^\[vsyscall\]$"
)

PTRACE_DETACH, PTRACE_GETREGSET, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4204, 0x4206, 0x4207
NT_PRSTATUS = 1
WAIT_ALL = 0x40000000
PROGRAM_COUNTER = {"x86_64": 16, "aarch64": 32}


@dataclass(frozen=True, kw_only=True)
class Census:
    """`own` and `library` in any unit of time; what only moves data counts as neither."""

    own: float
    library: float
    names: tuple[str, ...] = ()
    """The libraries' parts, the largest first."""

    @property
    def own_share(self) -> float | None:
        """0 to 1; None where nothing was computed."""
        total = self.own + self.library
        return self.own / total if total else None

    def reason(self) -> str | None:
        """Why the kernel does not do the work itself; None where it does."""
        share = self.own_share
        if share is None or share >= OWN_SHARE:
            return None
        parts = ", ".join(name[:120] for name in self.names[:3])
        return f"{1 - share:.0%} of the computing was done by a library: {parts}"


def of_kernels(kernels: Iterable[tuple[str, int]]) -> Census:
    """The census of a device's trace: kernels by name, mangled or not, with their time."""
    totals: dict[bool, float] = {True: 0.0, False: 0.0}
    names: Counter[str] = Counter()
    for name, duration_ns in kernels:
        if MOVING_KERNELS.search(name):
            continue
        of_library = LIBRARY_KERNELS.search(name) is not None
        totals[of_library] += duration_ns
        if of_library:
            names[name] += duration_ns
    return Census(own=totals[False], library=totals[True], names=tuple(n for n, _ in names.most_common()))


class ThreadSampler:
    """For the time of a `with` block, looks now and then where the threads below process `pid` are.

    Each look attaches and detaches, so that between looks nothing shows the process that it is watched.
    `scratch`: the folder whose shared objects are the candidate's own.
    """

    def __init__(self, pid: int, scratch: str) -> None:
        self._pid, self._scratch = pid, scratch
        self._own, self._library = 0, Counter[str]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._maps: dict[int, Maps] = {}

    def __enter__(self) -> ThreadSampler:
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def samples(self) -> int:
        """Those that found somebody computing."""
        return self._own + self._library.total()

    def census(self) -> Census:
        """What was seen so far."""
        names = tuple(os.path.basename(path) for path, _ in self._library.most_common())
        return Census(own=self._own, library=self._library.total(), names=names)

    def _watch(self) -> None:
        while not self._stop.wait(random.uniform(2e-4, 2e-3)):
            for pid in sandbox.descendants(self._pid):
                with contextlib.suppress(OSError):
                    for thread in os.listdir(f"/proc/{pid}/task"):
                        self._look(pid, int(thread))

    def _look(self, pid: int, thread: int) -> None:
        address = program_counter(thread)
        if address is None:
            return
        maps = self._maps.get(pid)
        if maps is None or not maps.knows(address):
            maps = self._maps[pid] = Maps(pid)
        path = maps.file(address)
        if path is None or NEUTRAL_FILES.search(path):
            return
        compiled = path.startswith(f"{self._scratch}/inductor/")
        if (path.startswith(self._scratch) and not compiled) or not path.startswith("/"):
            self._own += 1
        else:
            self._library[path] += 1


class Maps:
    """Which file each executable address of a process lies in. Raises OSError."""

    def __init__(self, pid: int) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._paths: list[str] = []
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if "x" in fields[1]:
                start, end = (int(each, 16) for each in fields[0].split("-"))
                self._starts.append(start)
                self._ends.append(end)
                self._paths.append(fields[5].removesuffix(" (deleted)") if len(fields) == 6 else "")

    def knows(self, address: int) -> bool:
        """Whether the address was executable when this was read."""
        return self.file(address) is not None

    def file(self, address: int) -> str | None:
        """The path; "" or a name in brackets for memory without a file, None for an unknown address."""
        index = bisect_right(self._starts, address) - 1
        return self._paths[index] if index >= 0 and address < self._ends[index] else None


def program_counter(thread: int) -> int | None:
    """Where a thread of another process is, by a short look with ptrace; None where it cannot be had."""
    if _ptrace(PTRACE_SEIZE, thread, 0, 0) != 0:
        return None
    try:
        if _ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0:
            return None
        os.waitpid(thread, WAIT_ALL)
        registers = (ctypes.c_uint64 * 64)()
        piece = _Vector(ctypes.addressof(registers), ctypes.sizeof(registers))
        if _ptrace(PTRACE_GETREGSET, thread, NT_PRSTATUS, ctypes.addressof(piece)) != 0:
            return None
        return int(registers[PROGRAM_COUNTER[os.uname().machine]])
    except ChildProcessError:
        return None
    finally:
        _ptrace(PTRACE_DETACH, thread, 0, 0)


def can_sample() -> bool:
    """Whether this machine lets a process look into its own child; tried once by whoever asks."""
    pid = os.fork()
    if pid == 0:
        while True:
            time.sleep(60)
    try:
        return program_counter(pid) is not None
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request: int, thread: int, address: int, data: int) -> int:
    return int(_libc.ptrace(request, thread, address, data))
