"""The memory of the judge process's device: how much is planned for what, and who holds how much."""

from __future__ import annotations

import os
import time

from evaluators.judge.memory_plan import CONTEXT_BYTES, GIB, SPARE_BYTES, MemoryPlan, most_calls, shared_calls
from evaluators.reference.accuracy.row_slices import SLICE_BYTES
from evaluators.reference.containers import tensors_in
from evaluators.reference.reference_model import ReferenceModel
from evaluators.runner.shared_buffers import Layout

ROOMY = 0.25
"""With this share of the device's memory free, the judge process keeps what it holds for its next draw."""

WIDE_SLICES = 8
"""Of the memory of a slice, for its float64 and what is computed in between (see `row_slices`)."""
CLEARED_BYTES_PER_S = 2e11
"""A cautious guess, of memory that was given back to a GPU: that the driver overwrites it with zeros,
meanwhile, would explain why eager took 11 ms in blocks of level1/94 on an H100, and 8.7 where none was given
back before."""
OTHERS_SHARE = 0.1
"""Of the device's memory, at most, that our own contexts and runners hold when a problem is opened."""


class DeviceMemory:
    """Of a device, for one problem. On a CPU, whose memory holds more than ours, only shares are planned."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        self._plan: MemoryPlan | None = None
        self.baseline_bytes = 0
        """What the baseline's runner was seen to hold."""

    def calls(self, reference: ReferenceModel, wanted: int) -> int:
        """Calls that shared buffers are made for, at most so many. Asked before there are any, and while the
        reference still has its sample. Raises TooLarge and MemoryError."""
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

    def know_baseline(self, held_bytes: int, calls: int) -> None:
        """What the baseline's runner was seen to hold, in blocks of so many calls: others may, too."""
        self.baseline_bytes = held_bytes
        if self._plan is not None:
            self._plan = self._plan.with_baseline(held_bytes, calls)

    @property
    def is_lean(self) -> bool:
        """Whether runners are to give memory back after each block."""
        return self._plan is not None and self._plan.lean

    def most_candidates(self, whole: int, wanted: int) -> int:
        """Of so many, those that there is room for at once, where one alone has `whole` calls."""
        return wanted if self._plan is None else self._plan.most_candidates(whole, wanted)

    def calls_of_each(self, whole: int, candidates: int) -> int:
        """Of each of so many candidates at once, where one alone has `whole`. Raises MemoryError."""
        if self._plan is None:
            return shared_calls(whole, candidates)
        return self._plan.calls_of_each(whole, candidates)

    def trim(self) -> None:
        """Gives back the memory that drawing and comparing took, where runners may need it, and waits as long
        as the device may be busy with that: a block that begins meanwhile would take longer. Elsewhere it is
        kept: what was just taken from the device again makes the next block longer, too."""
        from torch import cuda

        if not self._on_gpu:
            return
        free_bytes, total_bytes = cuda.mem_get_info()
        if free_bytes < ROOMY * total_bytes:
            held_bytes = cuda.memory_reserved()
            cuda.empty_cache()
            time.sleep((held_bytes - cuda.memory_reserved()) / CLEARED_BYTES_PER_S)

    def others_bytes(self) -> int:
        """Held by others than torch in this process: by runners, and, which does not change, by contexts and
        in shared buffers. 0 on a CPU."""
        return _others_bytes() if self._on_gpu else 0

    def overdrawn(self, runner_bytes: int, calls: int) -> str:
        """What is to be said of a candidate's runner that holds so much; "" where it may, in blocks of so
        many calls."""
        if self._plan is None:
            return ""
        allowed = self._plan.runner_bytes(calls) + SPARE_BYTES
        if runner_bytes <= allowed:
            return ""
        return (
            f"it holds {runner_bytes / GIB:.3g} GiB of the device's memory, more than {allowed / GIB:.3g} GiB"
        )


def used_up(error: Exception) -> str:
    """Why a problem is too large for the device, where an error says that this process has no memory left; ""
    where it says something else, or where others hold some of the memory, which they may give back."""
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
    """For one answer at most: as seen of those to some elements, or to all, where that takes more."""
    if reference.slices is None:
        return reference.answer_bytes
    exact_bytes = sum(8 * each.numel() for each in reference.outputs)
    return max(reference.answer_bytes, sample_bytes + exact_bytes + WIDE_SLICES * SLICE_BYTES)


def _planned(reference: ReferenceModel, input_bytes: int, output_bytes: int) -> MemoryPlan:
    """On a GPU, before there are shared buffers. The sample's memory counts as free: it will be."""
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
