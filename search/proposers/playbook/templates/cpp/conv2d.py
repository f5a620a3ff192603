"""2-D convolution in C++, optionally with ReLU and max-pool: from seven plain loops to register tiles.

The fast algorithm computes one output row at a time, with channels innermost. A tile of `tile_q` neighbouring
pixels by `tile_k` vectors of channels stays in registers over the whole window, so each weight vector is
loaded once per tile and each pixel is a broadcast.
"""

from __future__ import annotations

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.templates.cpp import machine, pieces
from search.proposers.playbook.templates.cpp.conv.loops import plain_loops
from search.proposers.playbook.templates.cpp.conv.moves import MOVES, NAIVE
from search.proposers.playbook.templates.cpp.conv.plan import has_pool, has_relu
from search.proposers.playbook.templates.cpp.conv.rows import row_by_row
from search.proposers.playbook.templates.scaffold import cpp_kernel
from search.proposers.playbook.workload import Workload


class Conv2d:
    """The family of convolution kernels."""

    op = "conv2d"
    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Float32 only. A tile must fit the registers and a row; bf16 needs zeros around the image."""
        if workload.dtype != "float32":
            return False
        if knobs["fuse"] == "pool" and not has_pool(workload, knobs):
            return False
        if knobs["fuse"] == "relu" and not has_relu(workload, knobs):
            return False
        if knobs["algorithm"] == "loops":
            return knobs["fuse"] != "pool" and knobs["dtype"] == "float32"
        tile_q, tile_k = int(knobs["tile_q"]), int(knobs["tile_k"])
        if (tile_q + 1) * tile_k + 1 > machine.registers() or tile_q > workload.sizes["Q"]:
            return False
        if knobs["dtype"] == "bf16":
            flat = knobs["algorithm"] == "im2col" or workload.sizes["dilation_w"] == 1
            return flat and knobs["border"] == "zeros" and "native" in str(knobs["flags"])
        return True

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        sizes = {name: size for name, size in workload.sizes.items() if name not in ("groups", "bias")}
        plain = knobs["algorithm"] == "loops"
        includes = (
            ["algorithm", "memory"] if plain else ["algorithm", "cstdint", "cstring", "memory", "vector"]
        )
        includes += ["immintrin.h"] if knobs["dtype"] == "bf16" else []
        includes += ["sys/mman.h"] if knobs["pages"] == "huge" and not plain else []
        pooled = "maxpool" in workload.epilogue
        plane = ("PP", "PQ") if pooled else ("P", "Q")
        shape = [workload.sizes[name] for name in ("N", "K", *plane)]
        return cpp_kernel(
            summary=_summary(workload, knobs),
            workload=workload,
            knobs=knobs,
            includes=includes,
            sizes=sizes,
            constants=bool(knobs["constants"]),
            source=plain_loops(workload, knobs) if plain else row_by_row(workload, knobs),
            flags=pieces.flags(knobs),
            shapes={"x": [workload.sizes[name] for name in "NCHW"]},
            weights=["weight", "bias"] if workload.sizes["bias"] else ["weight"],
            output=f"torch.empty({', '.join(map(str, shape))})",
        )


TEMPLATE = Conv2d()


def _summary(workload: Workload, knobs: Knobs) -> str:
    what = " + ".join(["conv2d", *workload.epilogue])
    if knobs["algorithm"] == "loops":
        return f"{what} in C++: the plain loops."
    how = f"{knobs['tile_q']} pixels x {knobs['tile_k']} channel vectors in registers, {knobs['dtype']}"
    return f"{what} in C++: {knobs['algorithm']}, {how}."
