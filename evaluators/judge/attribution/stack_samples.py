"""Whose code a kernel runs on a CPU, observed from outside: stack samples of the runner's threads.

A sample consists of the instruction pointers of all threads (`process_inspection.py`) at an unpredictable
moment, and the files that they are in. Calling a library gains nothing over the reference on a CPU, so
samples only determine the share, and reject a kernel only if it plainly did nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator

from evaluators.judge.attribution.work_share import WorkShare
from evaluators.system import process_inspection, process_tree

FEWEST_SAMPLES, ENOUGH_SAMPLES, PLAIN_SAMPLES = 8, 30, 64
"""Samples that found computing threads: the minimum to determine a share; the number after which a kernel
seen in its own code needs no more; and the number after which a kernel never seen in its own code is
rejected. A kernel that spends a fifth of its time in its own code is wrongly rejected once in a million
measurements, with a tenth once in 800."""
MOST_SAMPLES = 4 * PLAIN_SAMPLES
"""Samples at most, whatever they found: some kernels spend their time in Python and are rarely seen
computing."""
GAP_MS, PROGRESS_MS = 3.0, 1.0
"""Least time between samples, and how long the candidate must have run in it: a thread that waits for a core
is found where it was, and a busy machine must not make the same moment count repeatedly."""

NEUTRAL_FILES = re.compile(
    r"/(libc|libm|libmvec|ld-linux[^/]*|libpthread|libgomp[^/]*|libomp|libiomp5|libstdc\+\+|libgcc_s|libpython[^/]*|"
    r"libtorch_python|libc10|libcudart[^/]*|libcuda|libffi|python[^/]*|_ctypes[^/]*)(-[\w.]+)?(\.so[.\d]*)?$|/lib-dynload/|^\[vdso\]$|^\[vsyscall\]$"
)
"""Languages, threads and the system: threads in them may have come from own code or from a library."""


class StackSamples:
    """Where the threads below process `pid` were at unpredictable moments, with all of them stopped.

    Own code is in files in the folder `scratch`. A sample counts for the library if any thread is in it, so
    that own code on other threads does not hide it.
    """

    def __init__(self, pid: int, scratch: str) -> None:
        self._pid, self._scratch = pid, scratch
        self._own = self._library = self._nobody = 0
        self._ran_ns = 0
        self._names: Counter[str] = Counter()

    def share(self) -> WorkShare:
        """The share seen so far, in samples that found computing threads."""
        names = tuple(os.path.basename(path) or "generated code" for path, _ in self._names.most_common())
        return WorkShare(own=self._own, library=self._library, names=names)

    @property
    def own_share(self) -> float | None:
        """0 to 1; None if too few samples found computing threads."""
        return self.share().own_share if self._own + self._library >= FEWEST_SAMPLES else None

    @property
    def count(self) -> int:
        """The number of all samples."""
        return self._own + self._library + self._nobody

    @property
    def decided(self) -> bool:
        """Whether further samples would not change the result, or would rarely find computing threads."""
        enough = ENOUGH_SAMPLES if self._own else PLAIN_SAMPLES
        return self._own + self._library >= enough or self.count >= MOST_SAMPLES

    def reason(self) -> str | None:
        """Why the kernel plainly does not do the work itself; None if that was not seen."""
        if self._own or self._library < PLAIN_SAMPLES:
            return None
        return (
            f"{self._library} samples of its threads have found a library at work and never its own code: "
            f"{self.share().parts()}"
        )

    def delay_s(self) -> float:
        """How long to wait for the next sample."""
        return random.uniform(GAP_MS, 2 * GAP_MS) / 1e3

    def take(self, family: Iterable[int]) -> None:
        """Takes a sample now. `family` are the known processes, to stop before looking for others."""
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
        """Counts a sample that found threads in the code of these files."""
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
        """For each computing thread, the file of the code that it was in; "" for code in no file."""
        regions: list[process_inspection.Region] = []
        for thread, address in process_inspection.program_counters(pid):
            if not regions:
                with contextlib.suppress(OSError):
                    regions = process_inspection.code_regions(pid, thread)
            if (place := process_inspection.region_at(regions, address)) is not None:
                yield place.path

    def _is_own(self, path: str) -> bool:
        """Code that torch.compile writes into the folder counts as torch's."""
        return path.startswith(f"{self._scratch}/") and not path.startswith(f"{self._scratch}/inductor/")
