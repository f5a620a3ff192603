"""How much of the computing a kernel's own code did, and how much a library's; on a GPU from the device's
trace.

Each kernel in the trace (`cupti_trace.py`) is a library's or the candidate's own (see `vendor_kernels.py`).
Launching a decoy next to the library's work does not help: own kernels must take nine tenths of the time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from evaluators.judge.attribution.vendor_kernels import VendorKernels, function_of

OWN_SHARE = 0.9
"""Required share of the time of a GPU's kernels under `no_library`."""
MOVING_KERNELS = re.compile(
    r"direct_copy_kernel|bfloat16_copy_kernel|float16_copy_kernel|copy_kernel_cuda|FillFunctor|"
    r"CatArrayBatchedCopy|constant_pad|copy_device_to_device"
)
"""torch's kernels that prepare inputs and outputs, and compute nothing."""


@dataclass(frozen=True, kw_only=True)
class WorkShare:
    """`own` and `library` in any unit of time; kernels that only move data count as neither."""

    own: float
    library: float
    names: tuple[str, ...] = ()
    """The libraries' parts, the largest first."""

    @property
    def own_share(self) -> float | None:
        """0 to 1; None if nothing was computed."""
        total = self.own + self.library
        return self.own / total if total else None

    def parts(self) -> str:
        """The libraries' largest parts, for a log."""
        return ", ".join(name[:120] for name in self.names[:3])


def share_of_kernels(kernels: Iterable[tuple[str, int]], libraries: VendorKernels, source: str) -> WorkShare:
    """The shares in a device's trace. `kernels` are names, mangled or not, with times in ns, as a candidate
    with this source ran them."""
    own = 0.0
    names: Counter[str] = Counter()
    for name, duration_ns in kernels:
        if not libraries.holds(name, source):
            own += duration_ns
        elif not MOVING_KERNELS.search(name):
            names[function_of(name)] += duration_ns
    return WorkShare(own=own, library=names.total(), names=tuple(name for name, _ in names.most_common()))


def not_its_own(seen: WorkShare) -> str | None:
    """Why a kernel on a GPU does not do the work itself according to its trace; None if it does. A kernel
    that ran nothing does not: copies and fills by torch are part of a reference's work, too."""
    share = seen.own_share
    if not seen.own:
        by_whom = f" but a library's: {seen.parts()}" if seen.library else ""
        return f"it ran no kernel of its own{by_whom}"
    if share is None or share >= OWN_SHARE:
        return None
    return f"{1 - share:.0%} of the computing was done by a library: {seen.parts()}"
