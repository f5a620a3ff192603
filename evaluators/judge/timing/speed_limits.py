"""How fast a kernel can solve the problem on this device, from its work and the device's peaks."""

from __future__ import annotations

from pathlib import Path

from evaluators.records.evaluation import Roofline
from evaluators.records.problem import Problem, lower_precisions
from evaluators.reference.cost.machine_peaks import peaks_of
from evaluators.reference.cost.operation_count import Work
from evaluators.reference.cost.roofline import roofline, too_fast


class SpeedLimits:
    """Of one problem on one device, whose peaks are measured once and cached."""

    def __init__(self, problem: Problem, work: Work, cache: Path) -> None:
        """`work` is that of one call of the reference; `cache` is the folder for the peaks."""
        self._problem, self._work = problem, work
        self._file = cache / "machine_peaks.json"
        self._peaks = peaks_of(problem.device, self._file)

    def roofline(self) -> Roofline:
        """The problem's floor."""
        lower = lower_precisions(self._problem.tolerance, self._problem.precision)
        return roofline(self._work, self._peaks, self._problem.dtype, lower=bool(lower))

    def facts(self) -> dict[str, str]:
        """The device's best measured rates, and the time of its smallest kernel, for kernel authors."""
        rates = {f"{n}_tflop_per_s": f"{r / 1e12:.3g}" for n, r in self._peaks.operations_per_s.items()}
        facts = {"copy_gb_per_s": f"{self._peaks.bytes_per_s / 1e9:.4g}", **rates}
        if self._peaks.empty_kernel_s is not None:
            facts["empty_kernel_us"] = f"{self._peaks.empty_kernel_s * 1e6:.3g}"
        return facts

    def too_fast(self, kernel_ms: float, eager_ms: float, footprint_bytes: int) -> str | None:
        """Why no kernel can be this fast in blocks whose inputs have `footprint_bytes`; None if one can. The
        peaks are measured again before a reason is returned."""
        if not self._problem.floor:
            return None

        def reason() -> str | None:
            return too_fast(
                kernel_ms=kernel_ms,
                eager_ms=eager_ms,
                work=self._work,
                peaks=self._peaks,
                footprint_bytes=footprint_bytes,
            )

        if reason() is None:
            return None
        self._peaks = peaks_of(self._problem.device, self._file, again=True)
        return reason()
