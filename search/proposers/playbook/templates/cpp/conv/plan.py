"""Properties of a workload and its knobs that several parts need."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.workload import Workload


def has_relu(workload: Workload, knobs: Knobs) -> bool:
    """Whether ReLU follows."""
    return "relu" in workload.epilogue


def has_pool(workload: Workload, knobs: Knobs) -> bool:
    """Whether a max-pool follows."""
    return "maxpool" in workload.epilogue


def bordered(workload: Workload, knobs: Knobs) -> bool:
    """Whether the image has a border of zeros."""
    return bool(workload.sizes["pad_h"] or workload.sizes["pad_w"])


def checks_bounds(workload: Workload, knobs: Knobs) -> bool:
    """Whether bounds checks stand for the border of the image."""
    return knobs["border"] == "checks" and bordered(workload, knobs)


def copies_image(workload: Workload, knobs: Knobs) -> bool:
    """Whether a task copies its part of the image, to add the border or to round it."""
    return knobs["border"] == "zeros" and (knobs["dtype"] == "bf16" or bordered(workload, knobs))


def signature(workload: Workload) -> str:
    """The signature of the C function that Python calls."""
    bias = ", const float* bias" if workload.sizes["bias"] else ""
    return f'extern "C" void run(const float* x, const float* weight{bias}, float* out, int threads)'
