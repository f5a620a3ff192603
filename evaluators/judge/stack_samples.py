"""Who did the computing: the kernel's own code, or a library.

On a GPU from the device's trace (`cupti_trace.py`): a kernel in it is a library's or the candidate's own
(see `vendor_kernels.py`), and a decoy that is launched beside the library's work does not help: own kernels
must take nine tenths of the time. On a CPU from outside: the instruction pointers of the runner's threads
(`process_inspection.py`) at unpredictable moments, and the files that they lie in. A library's call earns
nothing over the reference there, so looks only tell the share, and reject who was plainly seen to do nothing
itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evaluators.judge.vendor_kernels import LibraryKernels, function_of
from evaluators.system import process_inspection, process_tree

OWN_SHARE = 0.9
"""Of the time of a GPU's kernels, under `no_library`."""
FEWEST_LOOKS, ENOUGH_LOOKS, PLAIN_LOOKS = 8, 30, 64
"""Looks, on a CPU, that found somebody computing: so many tell a share; more are not needed of who was seen
in own code; and who was never seen there in so many is rejected. A kernel that spends a fifth of its time in
own code is wrongly rejected once in a million measurements, one with a tenth once in 800."""
MOST_LOOKS = 4 * PLAIN_LOOKS
"""Whatever they found: some kernels spend their time in Python, and are hardly met at anything else."""
GAP_MS, PROGRESS_MS = 3.0, 1.0
"""Time between looks at least, and what the candidate must have run in it: who waits for a core is found
where it was before, and a busy machine must not make the same moment count again and again."""

MOVING_KERNELS = re.compile(
    r"direct_copy_kernel|bfloat16_copy_kernel|float16_copy_kernel|copy_kernel_cuda|FillFunctor|"
    r"CatArrayBatchedCopy|constant_pad|copy_device_to_device"
)
"""Of torch's: they prepare a kernel's inputs and outputs, and compute nothing."""
NEUTRAL_FILES = re.compile(
    r"/(libc|libm|libmvec|ld-linux[^/]*|libpthread|libgomp[^/]*|libomp|libiomp5|libstdc\+\+|libgcc_s|libpython[^/]*|"
    r"libtorch_python|libc10|libcudart[^/]*|libcuda|libffi|python[^/]*|_ctypes[^/]*)(-[\w.]+)?(\.so[.\d]*)?$|/lib-dynload/|^\[vdso\]$|^\[vsyscall\]$"
)
"""Languages, threads and the system: in them is whoever calls own code, or a library."""


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

    def parts(self) -> str:
        """The largest of the libraries', for a log."""
        return ", ".join(name[:120] for name in self.names[:3])


def of_kernels(kernels: Iterable[tuple[str, int]], libraries: LibraryKernels, source: str) -> Census:
    """The census of a device's trace: kernels by name, mangled or not, with their time in ns, as a candidate
    with this source ran them."""
    own = 0.0
    names: Counter[str] = Counter()
    for name, duration_ns in kernels:
        if not libraries.holds(name, source):
            own += duration_ns
        elif not MOVING_KERNELS.search(name):
            names[function_of(name)] += duration_ns
    return Census(own=own, library=names.total(), names=tuple(name for name, _ in names.most_common()))


def not_its_own(seen: Census) -> str | None:
    """Why a kernel on a GPU does not do the work itself, by the census of its trace; None where it does. Who
    ran nothing does not: copies and fills by torch are a reference's work, too."""
    share = seen.own_share
    if not seen.own:
        by_whom = f" but a library's: {seen.parts()}" if seen.library else ""
        return f"it ran no kernel of its own{by_whom}"
    if share is None or share >= OWN_SHARE:
        return None
    return f"{1 - share:.0%} of the computing was done by a library: {seen.parts()}"


class Looks:
    """Where the threads below process `pid` were at moments that nobody can foresee, with all of them stopped
    at once.

    Own code is that of files in the folder `scratch`. A look finds the library at work if any thread is in
    it, so that own code on other threads does not hide it.
    """

    def __init__(self, pid: int, scratch: str) -> None:
        self._pid, self._scratch = pid, scratch
        self._own = self._library = self._nobody = 0
        self._ran_ns = 0
        self._names: Counter[str] = Counter()

    def census(self) -> Census:
        """What was seen so far, in looks that found somebody computing."""
        names = tuple(os.path.basename(path) or "generated code" for path, _ in self._names.most_common())
        return Census(own=self._own, library=self._library, names=names)

    @property
    def own_share(self) -> float | None:
        """0 to 1; None where too few looks found anybody computing."""
        return self.census().own_share if self._own + self._library >= FEWEST_LOOKS else None

    @property
    def count(self) -> int:
        """Of all looks, whatever they found."""
        return self._own + self._library + self._nobody

    @property
    def decided(self) -> bool:
        """Whether nothing depends on further looks, or they would hardly find anybody."""
        enough = ENOUGH_LOOKS if self._own else PLAIN_LOOKS
        return self._own + self._library >= enough or self.count >= MOST_LOOKS

    def reason(self) -> str | None:
        """Why the kernel plainly does not do the work itself; None where that was not seen."""
        if self._own or self._library < PLAIN_LOOKS:
            return None
        return (
            f"{self._library} looks at its threads have found a library at work and never its own code: "
            f"{self.census().parts()}"
        )

    def delay_s(self) -> float:
        """How long to wait for the next look."""
        return random.uniform(GAP_MS, 2 * GAP_MS) / 1e3

    def look(self, family: Iterable[int]) -> None:
        """Now. `family`: the processes that there were, to be stopped before any others are looked for."""
        process_tree.stop_all(family)
        family = process_tree.stop_tree(self._pid)
        try:
            ran_ns = sum(process_inspection.run_ns(family).values())
            paths = {path for pid in family for path in self._paths(pid)}
        finally:
            process_tree.signal_all(family, signal.SIGCONT)
        if ran_ns - self._ran_ns >= PROGRESS_MS * 1e6:
            self._ran_ns = ran_ns
            self._count(paths)

    def _count(self, paths: set[str]) -> None:
        """A look that found threads in the code of these files."""
        own = {path for path in paths if self._is_own(path)}
        libraries = {path for path in paths - own if not NEUTRAL_FILES.search(path)}
        self._names.update(libraries)
        if libraries:
            self._library += 1
        elif own:
            self._own += 1
        else:
            self._nobody += 1

    def _paths(self, pid: int) -> Iterator[str]:
        """Of each thread that was computing: the file of the code that it was in, "" for code in no file."""
        regions: list[process_inspection.Region] = []
        for thread, address in process_inspection.program_counters(pid):
            if not regions:
                with contextlib.suppress(OSError):
                    regions = process_inspection.code_regions(pid, thread)
            if (place := process_inspection.region_at(regions, address)) is not None:
                yield place.path

    def _is_own(self, path: str) -> bool:
        """What torch.compile writes into the folder is torch's."""
        return path.startswith(f"{self._scratch}/") and not path.startswith(f"{self._scratch}/inductor/")
