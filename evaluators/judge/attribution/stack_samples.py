"""Whose code a kernel runs on a CPU, from outside: stack samples of the runner's threads.

A sample has the instruction pointers of all threads (`process_inspection.py`) at a moment that nobody can
foresee, and the files that they lie in. A library's call earns nothing over the reference on a CPU, so
samples only tell the share, and reject who was plainly seen to do nothing itself.
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
"""Samples that found somebody computing: so many tell a share; more are not needed of who was seen
in own code; and who was never seen there in so many is rejected. A kernel that spends a fifth of its time in
own code is wrongly rejected once in a million measurements, one with a tenth once in 800."""
MOST_SAMPLES = 4 * PLAIN_SAMPLES
"""Whatever they found: some kernels spend their time in Python, and are hardly met at anything else."""
GAP_MS, PROGRESS_MS = 3.0, 1.0
"""Time between samples at least, and what the candidate must have run in it: who waits for a core is found
where it was before, and a busy machine must not make the same moment count again and again."""

NEUTRAL_FILES = re.compile(
    r"/(libc|libm|libmvec|ld-linux[^/]*|libpthread|libgomp[^/]*|libomp|libiomp5|libstdc\+\+|libgcc_s|libpython[^/]*|"
    r"libtorch_python|libc10|libcudart[^/]*|libcuda|libffi|python[^/]*|_ctypes[^/]*)(-[\w.]+)?(\.so[.\d]*)?$|/lib-dynload/|^\[vdso\]$|^\[vsyscall\]$"
)
"""Languages, threads and the system: in them is whoever calls own code, or a library."""


class StackSamples:
    """Where the threads below process `pid` were at moments that nobody can foresee, with all of them stopped
    at once.

    Own code is that of files in the folder `scratch`. A sample finds the library at work if any thread is in
    it, so that own code on other threads does not hide it.
    """

    def __init__(self, pid: int, scratch: str) -> None:
        self._pid, self._scratch = pid, scratch
        self._own = self._library = self._nobody = 0
        self._ran_ns = 0
        self._names: Counter[str] = Counter()

    def share(self) -> WorkShare:
        """What was seen so far, in samples that found somebody computing."""
        names = tuple(os.path.basename(path) or "generated code" for path, _ in self._names.most_common())
        return WorkShare(own=self._own, library=self._library, names=names)

    @property
    def own_share(self) -> float | None:
        """0 to 1; None where too few samples found anybody computing."""
        return self.share().own_share if self._own + self._library >= FEWEST_SAMPLES else None

    @property
    def count(self) -> int:
        """Of all samples, whatever they found."""
        return self._own + self._library + self._nobody

    @property
    def decided(self) -> bool:
        """Whether nothing depends on further samples, or they would hardly find anybody."""
        enough = ENOUGH_SAMPLES if self._own else PLAIN_SAMPLES
        return self._own + self._library >= enough or self.count >= MOST_SAMPLES

    def reason(self) -> str | None:
        """Why the kernel plainly does not do the work itself; None where that was not seen."""
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
        """A sample that found threads in the code of these files."""
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
