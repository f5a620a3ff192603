"""Who did the computing: the kernel's own code, or a library.

On a GPU from the device's trace (`device_trace.py`), by the names of what ran. On a CPU from outside: the
instruction pointers of the runner's threads (`peek.py`) at unpredictable moments, and the files that they lie
in. A decoy that is launched beside the library's work does not help: it must take nine tenths of the time.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evaluators import peek, process_tree
from evaluators.library_code import REACH, LibraryCode

OWN_SHARE = {"cuda": 0.9, "cpu": 0.8}
"""Of the time spent computing, under `no_library`; samples are less sure than traces."""
SHORT_MS, SHORT_OWN_SHARE = 0.5, 0.5
"""Calls on a CPU that single looks hardly meet, and in which torch's allocation of an output and the like are
a part that counts."""
ROW_SLOTS, ROW_MS, MOST_ROW_CALLS, MOST_ROW_BYTES = 4, 10.0, 1000, 64 * 2**20
"""Of a row of such calls: different inputs, length, and what all their outputs may take."""
ROW_FACTOR = 2.0
"""How much longer a call may take in a row than alone, beyond the clock's noise."""
MAX_OWN_BYTES = 8 * 2**20
FEWEST_LOOKS, ENOUGH_LOOKS, SURE_LOOKS = 8, 40, 100
"""To clear a kernel at all; to clear it for good; to reject one that is not plainly a library's."""
PLAIN = 0.5
"""Of the share that is asked for: who has less needs no more looks."""
LATE = 0.25
"""Of the time in which a look may come: one that is so much later than it was to be clears nobody. Whoever
takes all cores for the library's part keeps the looks away from it."""
LONGEST_S, PATIENCE_S = 1.0, 3.0
"""For looks after the timing; where a rejection depends on more of them, as long as patience lasts."""
FAIR_TRIES = 3 * FEWEST_LOOKS
"""Calls to look at before who was hardly seen is blamed for it, however long that takes: they may be slow."""

LIBRARY_KERNELS = re.compile(
    r"2at\d|\bat::|at_cuda_detail|3c10|c10::|pytorch_|fmha_|flash_fwd|flash_bwd|cudnn|cublas|_xmma_|^cutlass_|"
    r"^void cutlass__|cusparse|cusolver|cufft|(regular|vector)_fft|3cub|\bcub::|6thrust|\bthrust::|"
    r"nchwTo|nhwcTo|splitKreduce|gemv2|gemmk1|^triton_(poi|red|per|tem|spl|for|mm|convolution|helion)_"
)
MOVING_KERNELS = re.compile(
    r"direct_copy_kernel|bfloat16_copy_kernel|float16_copy_kernel|copy_kernel_cuda|FillFunctor|"
    r"CatArrayBatchedCopy|constant_pad|copy_device_to_device"
)
DELETED, GONE = " (deleted)", ("/memfd:", "/dev/", "/SYSV")
"""What a region's path ends with, or begins with, whose file is no longer there or never was on a disk."""
NEUTRAL_FILES = re.compile(
    r"/(libc|libm|libmvec|ld-linux[^/]*|libpthread|libgomp[^/]*|libomp|libiomp5|libstdc\+\+|libgcc_s|libpython[^/]*|"
    r"libtorch_python|libc10|libcudart[^/]*|libcuda|libffi|python[^/]*|_ctypes[^/]*)(-[\w.]+)?(\.so[.\d]*)?$|/lib-dynload/|^\[vdso\]$|^\[vsyscall\]$"
)

WORKING_FILES = re.compile(r"/(libc|libm|libmvec)(-[\w.]+)?\.so[.\d]*$")
"""Neutral, but whoever is in them does something: copying is all that some kernels have to do."""


@dataclass(frozen=True, kw_only=True)
class Census:
    """`own` and `library` in any unit of time; what only moves data counts as neither."""

    own: float
    library: float
    names: tuple[str, ...] = ()
    """The libraries' parts, the largest first."""
    asked: float
    """The share that is to be its own."""

    @property
    def own_share(self) -> float | None:
        """0 to 1; None where nothing was computed."""
        total = self.own + self.library
        return self.own / total if total else None

    def reason(self) -> str | None:
        """Why the kernel does not do the work itself; None where it does."""
        share = self.own_share
        if share is None or share >= self.asked:
            return None
        parts = ", ".join(name[:120] for name in self.names[:3])
        return f"{1 - share:.0%} of the computing was done by a library: {parts}"


def undecided(looks: int, tries: int, seen: Census, elapsed_s: float) -> bool:
    """Whether to look on, on a CPU, after so many looks that found somebody at work, in so many calls."""
    if sure(looks, seen):
        return False
    if looks < FEWEST_LOOKS and tries < FAIR_TRIES:
        return True
    if looks < FEWEST_LOOKS or seen.reason():
        return elapsed_s < PATIENCE_S
    return looks < ENOUGH_LOOKS and elapsed_s < LONGEST_S


def row_length(call_ms: float, output_bytes: int, stretch: int = 1) -> int:
    """Calls of a row, which may be `stretch` times as long as it has to be."""
    most = min(MOST_ROW_CALLS * stretch, MOST_ROW_BYTES // max(output_bytes, 1))
    return max(1, min(most, round(stretch * ROW_MS / max(call_ms, ROW_MS / MOST_ROW_CALLS))))


def hidden(looks: int) -> str | None:
    """Why a kernel is not cleared by what was seen of it: too little was."""
    return f"only {looks} looks have found it at work" if looks < FEWEST_LOOKS else None


def sure(looks: int, seen: Census) -> bool:
    """Whether so many looks are enough to reject a kernel on any machine: on a busy one they are few, and
    what they meet depends on who lets go of a core."""
    share = seen.own_share
    plain = looks >= 2 * FEWEST_LOOKS and share is not None and share < PLAIN * seen.asked
    return plain or (looks >= SURE_LOOKS and seen.reason() is not None)


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
    return Census(
        own=totals[False],
        library=totals[True],
        names=tuple(name for name, _ in names.most_common()),
        asked=OWN_SHARE["cuda"],
    )


class Looks:
    """Where the threads below process `pid` were whenever somebody looked: one look a call, at a moment that
    nobody can foresee, with all of them stopped at once. Who notices it has been seen already.

    A look finds the library at work if any thread is in it, so that own code on other threads does not hide
    it. `scratch`: the folder whose shared objects are the candidate's own, if they are no copies of `code`.
    """

    def __init__(self, pid: int, scratch: str, code: LibraryCode) -> None:
        self._pid, self._scratch, self._code = pid, scratch, code
        self._own = self._library = self._moving = 0
        self._names: Counter[str] = Counter()
        self.tries = 0
        """Calls that were to be looked at, whatever was found; some end before."""
        self.span_ms = 0.0
        """How long it is from the order to the answer: when a look may come."""
        self.call_ms = 0.0
        """How long a call takes at least."""
        self.alone_ms = math.inf
        """How long the fastest of the single calls took: a busy machine adds to most of them."""
        self._rows_ms: list[float] = []

    @property
    def count(self) -> int:
        """Of the looks that found somebody at work."""
        return self._own + self._library + self._moving

    def census(self) -> Census:
        """What was seen so far."""
        names = tuple(os.path.basename(path) or "generated code" for path, _ in self._names.most_common())
        asked = SHORT_OWN_SHARE if self.call_ms < SHORT_MS else OWN_SHARE["cpu"]
        return Census(own=self._own, library=self._library, names=names, asked=asked)

    def saw_row(self, row_ms: float, length: int, *, watched: bool) -> None:
        """How long a call took in a row of so many; looks of the next one come within that time."""
        if not watched:
            self._rows_ms.append(row_ms)
            self.span_ms = statistics.median(self._rows_ms) * length

    def slower_in_rows(self, slack_ms: float) -> str | None:
        """Why a kernel is not cleared by what it does in rows: alone it is faster, and so does less."""
        alone_ms = min(self.alone_ms, self.call_ms)
        row_ms = min(self._rows_ms, default=0.0)
        if row_ms <= alone_ms * ROW_FACTOR + slack_ms:
            return None
        return f"a call takes {alone_ms:.3g} ms when it is timed and {row_ms:.3g} ms in a row of calls"

    @property
    def stretch(self) -> int:
        """How many times as long rows should be: on a busy machine whoever looks may wake up too late."""
        return 1 + self.tries // FEWEST_LOOKS if self.count < self.tries / 4 else 1

    @property
    def sleeps(self) -> bool:
        """Whether to leave one's core until the look: on a busy machine it may be the runner's, too."""
        return self.stretch > 1 and self.tries % 2 == 0

    def delay_s(self) -> float:
        """How long to wait for the next look."""
        self.tries += 1
        return random.uniform(0, self.span_ms) / 1e3

    def look(self, family: Iterable[int], due: float) -> None:
        """Now; it was to be at `due`, by `time.perf_counter`. `family`: the processes that there were, to be
        stopped before any others are looked for."""
        late = (time.perf_counter() - due) * 1e3 > LATE * self.span_ms
        process_tree.stop_all(family)
        family = process_tree.stop_tree(self._pid)
        try:
            own, libraries, moving = False, set[str](), False
            for pid in family:
                for address, place, regions in self._places(pid):
                    if place is None or self._is_library(pid, address, place, regions):
                        libraries.add("" if place is None else place.path)
                    elif self._is_scratch(place):
                        own = True
                    else:
                        moving |= WORKING_FILES.search(place.path) is not None
        finally:
            process_tree.signal_all(family, signal.SIGCONT)
        self._names.update(libraries)
        self._library += bool(libraries)
        if not late:
            self._own += own and not libraries
            self._moving += moving and not own and not libraries

    def _places(self, pid: int) -> Iterator[tuple[int, peek.Region | None, list[peek.Region]]]:
        """Of each thread that was computing: where, in which memory, and all code of the process; None for
        who is nowhere known."""
        regions: list[peek.Region] = []
        for thread, address in peek.program_counters(pid):
            if not regions:
                with contextlib.suppress(OSError):
                    regions = peek.code_regions(pid, thread)
            yield address, peek.region_at(regions, address), regions

    def _is_library(self, pid: int, address: int, place: peek.Region, regions: list[peek.Region]) -> bool:
        """Not what a person writes into the scratch folder: little, there to be read, and no copy of a
        library's. What torch.compile made, what somebody's compiler made at run time, and what is in no file
        any more belongs to others; so does a copy of BLAS, in however many files, and what has been put in
        the place of a neutral file's code."""
        if place.path.endswith(DELETED):
            return True
        if not self._is_scratch(place):
            installed = place.path.startswith(("/", "[")) and not place.path.startswith(GONE)
            neutral = installed and NEUTRAL_FILES.search(place.path)
            return not (neutral and is_as_installed(pid, address, place))
        inductor = place.path.startswith(f"{self._scratch}/inductor/")
        own_bytes = sum(each.end - each.start for each in regions if self._is_scratch(each))
        return inductor or own_bytes > MAX_OWN_BYTES or self._is_copied(pid, address, place)

    def _is_copied(self, pid: int, address: int, place: peek.Region) -> bool:
        start, end = place.around(address, REACH)
        try:
            return self._code.holds(peek.read_bytes(pid, start, end), address - start)
        except (OSError, peek.Unreadable):
            return True  # code that is not to be read

    def _is_scratch(self, place: peek.Region) -> bool:
        return place.path.startswith(f"{self._scratch}/")


def is_as_installed(pid: int, address: int, place: peek.Region) -> bool:
    """Whether a process has the code around an address as it is in the file that the memory names, or as
    the kernel gave it to this process, too."""
    start, end = place.around(address, REACH)
    try:
        if place.path == "[vdso]":
            (ours,) = (each for each in peek.code_regions(os.getpid()) if each.path == place.path)
            here = ours.start - place.start
            expected = peek.read_bytes(os.getpid(), start + here, end + here)
        elif place.path.startswith("["):
            return True  # beyond what a process can write to
        else:
            with open(place.path, "rb") as file:
                file.seek(place.offset + start - place.start)
                expected = file.read(end - start)
        return expected == peek.read_bytes(pid, start, end)
    except (OSError, ValueError, peek.Unreadable):
        return False
