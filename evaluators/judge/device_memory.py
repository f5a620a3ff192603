"""The memory of the judge process's device: how much is planned for what, and who uses how much."""

from __future__ import annotations

import os
import time

from evaluators.judge.memory_plan import CONTEXT_BYTES, GIB, SPARE_BYTES, MemoryPlan, most_calls, shared_calls
from evaluators.reference.accuracy.row_slices import SLICE_BYTES
from evaluators.reference.containers import tensors_in
from evaluators.reference.reference_model import ReferenceModel
from evaluators.runner.shared_buffers import Layout

ROOMY = 0.25
"""If this share of the device's memory is free, the judge process keeps its own for the next draw."""

WIDE_SLICES = 8
"""Memory for a slice in float64 and its intermediate results, in multiples of the slice (see
`row_slices`)."""
CLEARED_BYTES_PER_S = 2e11
"""A cautious guess of how fast the driver zeroes freed GPU memory. Such zeroing would explain why eager took
11 ms in blocks of level1/94 on an H100, and 8.7 ms if no memory had been freed before."""
OTHERS_SHARE = 0.1
"""Largest share of the device's memory that our own contexts and runners use when a problem is opened."""


class DeviceMemory:
    """Plans a device's memory for one problem. On a CPU, whose memory others use too, only shares are
    planned."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        self._plan: MemoryPlan | None = None
        self.baseline_bytes = 0
        """Memory that the baseline's runner was seen to use."""

    def calls(self, reference: ReferenceModel, wanted: int) -> int:
        """Number of calls to create shared buffers for, at most `wanted`. Ask before there are any, and while
        the reference still has its sample. Raises TooLarge and MemoryError."""
        layouts = (
            Layout.of(tensors_in(reference.sample), 1, as_they_are=True),
            Layout.of(reference.outputs, 1),
        )
        input_bytes, output_bytes = (each.bytes for each in layouts)
        if not self._on_gpu:
            total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
            return min(most_calls(total_bytes, input_bytes + output_bytes), wanted)
        self._plan = _planned(reference, input_bytes, output_bytes).as_lean_as_needed()
        return self._plan.calls(min(most_calls(self._plan.total_bytes, input_bytes + output_bytes), wanted))

    def note_baseline(self, held_bytes: int, calls: int) -> None:
        """Records the memory that the baseline's runner uses in blocks of `calls` calls, as other runners
        may."""
        self.baseline_bytes = held_bytes
        if self._plan is not None:
            self._plan = self._plan.with_baseline(held_bytes, calls)

    @property
    def is_lean(self) -> bool:
        """Whether runners must free memory after each block."""
        return self._plan is not None and self._plan.lean

    def most_candidates(self, whole: int, wanted: int) -> int:
        """How many of `wanted` candidates fit at once, if one alone has `whole` calls."""
        return wanted if self._plan is None else self._plan.most_candidates(whole, wanted)

    def calls_of_each(self, whole: int, candidates: int) -> int:
        """Number of calls of each of these candidates at once, if one alone has `whole`. Raises
        MemoryError."""
        if self._plan is None:
            return shared_calls(whole, candidates)
        return self._plan.calls_of_each(whole, candidates)

    def trim(self) -> None:
        """Frees the memory that drawing and comparing used if runners may need it, and waits while the device
        may be busy with that, because it would slow the next block. Otherwise the memory is kept: memory
        newly taken from the device slows the next block, too."""
        from torch import cuda

        if not self._on_gpu:
            return
        free_bytes, total_bytes = cuda.mem_get_info()
        if free_bytes < ROOMY * total_bytes:
            held_bytes = cuda.memory_reserved()
            cuda.empty_cache()
            time.sleep((held_bytes - cuda.memory_reserved()) / CLEARED_BYTES_PER_S)

    def others_bytes(self) -> int:
        """Memory used by others than torch in this process: by runners and, a constant, by contexts and
        shared buffers. 0 on a CPU."""
        return _others_bytes() if self._on_gpu else 0

    def overdrawn(self, runner_bytes: int, calls: int) -> str:
        """A message if a candidate's runner uses more memory than it may in blocks of `calls` calls; ""
        otherwise."""
        if self._plan is None:
            return ""
        allowed = self._plan.runner_bytes(calls) + SPARE_BYTES
        if runner_bytes <= allowed:
            return ""
        return (
            f"it uses {runner_bytes / GIB:.3g} GiB of the device's memory, more than {allowed / GIB:.3g} GiB"
        )


def used_up(error: Exception) -> str:
    """Why a problem is too large for the device, if the error says that this process has no memory left. ""
    for other errors, and if others use some of the memory, which they may free."""
    import torch

    if not isinstance(error, torch.OutOfMemoryError):
        return ""
    total_bytes = torch.cuda.mem_get_info()[1]
    if _others_bytes() > OTHERS_SHARE * total_bytes:
        return ""
    return f"opening this problem takes more than the {total_bytes / GIB:.0f} GiB that the device has"


def _others_bytes() -> int:
    from torch import cuda

    free_bytes, total_bytes = cuda.mem_get_info()
    return int(total_bytes - free_bytes - cuda.memory_reserved())


def _answer_bytes(reference: ReferenceModel, sample_bytes: int) -> int:
    """Memory to compute one answer at most, as seen for some elements, or for all if that takes more."""
    if reference.slices is None:
        return reference.answer_bytes
    exact_bytes = sum(8 * each.numel() for each in reference.outputs)
    return max(reference.answer_bytes, sample_bytes + exact_bytes + WIDE_SLICES * SLICE_BYTES)


def _planned(reference: ReferenceModel, input_bytes: int, output_bytes: int) -> MemoryPlan:
    """The plan on a GPU, before there are shared buffers. The sample's memory counts as free, because it will
    be."""
    from torch import cuda

    sample_bytes = input_bytes + output_bytes
    free_bytes, total_bytes = cuda.mem_get_info()
    weights = (*reference.eager.parameters(), *reference.eager.buffers())
    return MemoryPlan(
        total_bytes=total_bytes,
        free_bytes=free_bytes + sample_bytes,
        held_bytes=cuda.memory_reserved() + CONTEXT_BYTES - sample_bytes,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        answer_bytes=_answer_bytes(reference, sample_bytes),
        weight_bytes=sum(each.nbytes for each in weights),
    )
