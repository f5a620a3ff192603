"""Who did the computing: the kernel's own code, or a library.

On a GPU from the device's trace (`device_trace.py`), by the names of what ran. On a CPU from outside: the
instruction pointers of the runner's threads at unpredictable moments, and the files that they lie in. A decoy
that is launched beside the library's work does not help: it must take nine tenths of the time.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
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

OWN_SHARE = {"cuda": 0.9, "cpu": 0.8}
"""Of the time spent computing, under `no_library`; samples are less sure than traces."""
MAX_OWN_BYTES = 8 * 2**20
FEWEST_LOOKS, ENOUGH_LOOKS, SURE_LOOKS = 8, 40, 100
"""To clear a kernel at all; to clear it for good; to reject one whose calls are so short that what is spent
around the work, in torch's allocation and the like, is a part of them that a few looks over-rate."""
LONGEST_S, PATIENCE_S = 1.0, 10.0
"""For looks at single calls, then for looks at rows of them; where a rejection depends on more of them, as
long as patience lasts: on a busy machine looks are rare."""
ROW_CALLS, ROW_MS = 4, 20.0
ROW_FACTOR = 2.0
"""How much longer a call may take in a row than alone, beyond the clock's noise."""

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
    r"/(libc|libm|libmvec|ld-linux[^/]*|libpthread|libgomp[^/]*|libomp|libiomp5|libstdc\+\+|libgcc_s|libpython[^/]*|"
    r"libtorch_python|libc10|libcudart[^/]*|libcuda|libffi|python[^/]*|_ctypes[^/]*)(-[\w.]+)?(\.so[.\d]*)?$|/lib-dynload/|^\[vdso\]$|^\[vsyscall\]$"
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

    def reason(self, device: str) -> str | None:
        """Why the kernel does not do the work itself; None where it does."""
        share = self.own_share
        if share is None or share >= OWN_SHARE[device]:
            return None
        parts = ", ".join(name[:120] for name in self.names[:3])
        return f"{1 - share:.0%} of the computing was done by a library: {parts}"


def repeats_of(call_ms: float) -> int:
    """How often ROW_CALLS calls are repeated in a row that is long enough to be looked at."""
    return max(1, math.ceil(ROW_MS / (ROW_CALLS * max(call_ms, 1e-3))))


def undecided(looks: int, seen: Census, device: str, elapsed_s: float) -> bool:
    """Whether to look on at rows of calls."""
    if looks < FEWEST_LOOKS or (looks < SURE_LOOKS and seen.reason(device)):
        return elapsed_s < PATIENCE_S
    return looks < ENOUGH_LOOKS and elapsed_s < LONGEST_S


def hidden_in_rows(looks: int, row_ms: float, call_ms: float, slack_ms: float) -> str | None:
    """Why a kernel whose single calls are too short to be seen often is not cleared by rows of calls: nobody
    was seen at work there, either, or a call of a row took longer than a single one that was timed, which
    gains nothing for who works in another way in rows."""
    if looks < FEWEST_LOOKS:
        return f"only {looks} looks have found it at work, in single calls and in rows of them"
    if row_ms > ROW_FACTOR * call_ms + slack_ms:
        return f"a call takes {call_ms:.3g} ms when it is timed and {row_ms:.3g} ms in a row of calls"
    return None


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

    A look finds the library at work if any thread is in it, so that own code on other threads does not hide
    it. Each look attaches and detaches: between looks nothing shows the process that it is watched.
    `scratch`: the folder whose shared objects are the candidate's own.
    """

    def __init__(self, pid: int, scratch: str) -> None:
        self._pid, self._scratch = pid, scratch
        self._own = self._library = 0
        self._names: Counter[str] = Counter()
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
    def looks(self) -> int:
        """Those that found somebody computing."""
        return self._own + self._library

    def census(self) -> Census:
        """What was seen so far."""
        names = tuple(os.path.basename(path) or "generated code" for path, _ in self._names.most_common())
        return Census(own=self._own, library=self._library, names=names)

    def _watch(self) -> None:
        while not self._stop.wait(random.uniform(0, 1e-3)):
            places = [place for pid in sandbox.descendants(self._pid) for place in self._places(pid)]
            libraries = [place for place in places if not self._is_own(place)]
            self._names.update(libraries)
            self._library += bool(libraries)
            self._own += bool(places) and not libraries

    def _places(self, pid: int) -> list[str]:
        """The files in which the threads of a process compute; "" for memory without a file."""
        found = []
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                address = program_counter(int(thread))
                if address is None:
                    continue
                maps = self._maps.get(pid)
                if maps is None or maps.file(address) is None:
                    maps = self._maps[pid] = Maps(pid)
                path = maps.file(address)
                if path is not None and not NEUTRAL_FILES.search(path):
                    found.append(path)
        return found

    def _is_own(self, path: str) -> bool:
        """A shared object of a size that a person writes, not one that torch.compile made or a copy of BLAS;
        memory without a file holds what somebody's compiler made at run time."""
        if not path.startswith(f"{self._scratch}/") or path.startswith(f"{self._scratch}/inductor/"):
            return False
        with contextlib.suppress(OSError):
            return os.path.getsize(path) <= MAX_OWN_BYTES
        return False


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
