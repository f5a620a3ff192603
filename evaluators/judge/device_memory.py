"""The memory of the judge process's device: how much is planned for what, and who uses how much."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from evaluators.judge.memory_plan import (
    CONTEXT_BYTES,
    GIB,
    SPARE_BYTES,
    MemoryPlan,
    TooLarge,
    most_calls,
    shared_calls,
)
from evaluators.records.problem import Problem
from evaluators.reference.accuracy.row_slices import SLICE_BYTES
from evaluators.reference.containers import tensors_in, tensors_of
from evaluators.reference.loading import (
    USERS_ERRORS,
    init_inputs,
    load_module,
    make_inputs,
    make_model,
)
from evaluators.reference.reference_model import ReferenceModel
from evaluators.runner.shared_buffers import Layout
from evaluators.system import machine_memory

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

ROOMY = 0.25
"""If this share of the device's memory is free, the judge process keeps its own for the next draw."""

WIDE_SLICES = 8
"""Memory for a slice in float64 and its intermediate results, in multiples of the slice (see
`row_slices`)."""
CLEARED_BYTES_PER_S = 2e11
"""A cautious guess of how fast the driver zeroes freed GPU memory. Such zeroing would explain why eager took
11 ms in blocks of level1/94 on an H100, and 8.7 ms if no memory had been freed before."""
FEW_SHARE = 0.02
"""Share of the free memory up to which inputs and weights fit in any case."""
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
            total_bytes = machine_memory.total_bytes() // 4
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


def require_room(problem: Problem) -> None:
    """Raises TooLarge for a problem on a CPU that cannot fit into the memory, before anything is allocated:
    when memory runs out, the system kills processes. Sizes come from the meta device; what cannot be learnt
    there counts as nothing."""
    import torch

    if problem.device != "cpu":
        return
    free_bytes = machine_memory.free_bytes()
    input_bytes, output_bytes, weight_bytes = sizes_on_meta(problem, enough=FEW_SHARE * free_bytes)
    wide = 8 // getattr(torch, problem.dtype).itemsize  # float64, in multiples of the weights' own type
    runners = 1 + problem.timed
    # Inputs: the sample, the staged ones, each runner's. Weights: in two precisions, and each runner's.
    needed = (2 + runners) * input_bytes + (1 + runners) * output_bytes
    needed += (1 + wide + runners) * weight_bytes
    if needed > free_bytes:
        raise TooLarge(
            f"this problem needs at least {needed / GIB:.1f} GiB on a CPU; {machine_memory.words()}; "
            "another device may have more"
        )


def sizes_on_meta(problem: Problem, *, enough: float) -> tuple[int, int, int]:
    """The bytes of a call's inputs and outputs and of the weights. The outputs are left out if the rest is
    not `enough` to need a closer look."""
    import torch

    inputs: list[Any] = []
    outputs: list[torch.Tensor] = []
    weights: list[torch.Tensor] = []
    how: Any = {"seed": 0, "device": "meta", "dtype": problem.dtype, "backward": problem.backward}
    try:
        module = load_module(problem.source, problem.overrides, name="reference_on_meta")
        with torch.device("meta"), torch.no_grad():
            model = make_model(module, "Model", init_inputs(module, 0), **how)
            weights = [*model.parameters(), *model.buffers()]
            inputs = make_inputs(module, **how)
            if _bytes_of(inputs) + _bytes_of(weights) >= enough:
                outputs = tensors_of(model(*inputs))
    except USERS_ERRORS as error:
        logger.info("the sizes of %s are unknown: %s", problem.name, error)
    return _bytes_of(inputs), _bytes_of(outputs), _bytes_of(weights)


def _bytes_of(values: Any) -> int:
    return sum(each.nbytes for each in tensors_in(values))


def used_up(error: BaseException) -> str:
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
