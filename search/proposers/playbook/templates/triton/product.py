"""Matrix products in Triton, also batched or added to a tensor, of floating tensors in any strides."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.operator_problem import tensor_names
from search.proposers.playbook.templates.operator_pieces import (
    CONTIGUOUS,
    SPREAD,
    kept,
    product_plan,
    product_scalars,
    product_tensors,
)
from search.proposers.playbook.templates.triton.operator_pieces import operator_kernel
from search.proposers.playbook.templates.triton.pieces import SHARED_BYTES, number
from search.proposers.playbook.workload import Signature, Workload
from search.records.tree import Category

MOVES = (
    Move(
        name="larger tiles",
        text="Compute a larger tile of the output in each program: every loaded element is used in more "
        "products.",
        category=Category.MEMORY,
        gain=2.0,
        varies={"block_m": (64, 128, 32), "block_n": (64, 128, 32), "warps": (4, 8)},
    ),
    Move(
        name="deeper steps",
        text="Cover more of the depth in each step: fewer steps, and longer contiguous reads.",
        category=Category.LATENCY,
        gain=1.2,
        varies={"block_k": (32, 64, 128)},
    ),
    Move(
        name="pipeline",
        text="Let asynchronous copies fetch the next steps' tiles into shared memory while this step's are "
        "multiplied.",
        category=Category.LATENCY,
        gain=1.2,
        needs={"stages": (1,)},
        varies={"stages": (3, 2, 4)},
    ),
    Move(
        name="fewer warps",
        text="Give small tiles fewer warps: each one has more to multiply between barriers.",
        category=Category.PARALLELISM,
        gain=1.05,
        varies={"warps": (2, 1, 4)},
    ),
)
NAIVE: Knobs = {
    "block_m": 16,
    "block_n": 16,
    "block_k": 16,
    "warps": 4,
    "stages": 1,
    "merged": False,
    "narrow": False,
    "remembered": True,
}
FLOATS = ("float32", "float16", "bfloat16")


class Product:
    """The family of matrix products."""

    op = "product"
    language = "triton"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """The types must be supported; tiles must fit registers and shared memory."""
        m, n, k = (number(knobs, name) for name in ("block_m", "block_n", "block_k"))
        shared = number(knobs, "stages") * (m + n) * k * 4
        return (
            bool(_signatures(workload)) and m * n <= 4096 * number(knobs, "warps") and shared <= SHARED_BYTES
        )

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        names = tensor_names(workload.operator)
        added, left, right = product_tensors(workload)
        tiles = f"triton.cdiv(m, {knobs['block_m']}) * triton.cdiv(n, {knobs['block_n']})"
        beta, alpha = product_scalars(workload).split(", ")
        forward = f"""
shapes = ({", ".join(f"{each}.shape" for each in names)})
shape, layout = plan(shapes, ({", ".join(f"{each}.stride()" for each in names)}))
batches, m, n, *_ = layout
out = torch.empty(shape, dtype=dtypes[0], device={left}.device)
product[({tiles}, batches)](
    out, {added}, {left}, {right}, float({beta}), float({alpha}), *layout[1:],
    ADDED={"False" if added is None else f"{beta} != 0"},
    BLOCK_M={knobs["block_m"]}, BLOCK_N={knobs["block_n"]}, BLOCK_K={knobs["block_k"]},
    num_warps={knobs["warps"]}, num_stages={knobs["stages"]},
)
return out
"""
        return operator_kernel(
            summary=f"{workload.operator} in Triton: a tile of the output a program.",
            workload=workload,
            knobs=knobs,
            chosen=_signatures(workload),
            functions=[KERNEL],
            helpers=[SPREAD, CONTIGUOUS],
            plan=product_plan(workload),
            forward=forward,
            inputs=names,
        )


TEMPLATE = Product()

KERNEL = '''
@triton.jit
def product(
    out, added, left, right, beta, alpha, m, n, k,
    left_batch, left_m, left_k, right_batch, right_k, right_n, added_batch, added_m, added_n,
    ADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """One program: a tile of the output of one batch."""
    batch = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(n, BLOCK_N)
    rows = (tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    columns = (tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, k, BLOCK_K):
        depth = first + tl.arange(0, BLOCK_K)
        from_left = left + batch * left_batch + rows * left_m + depth[None, :] * left_k
        from_right = right + batch * right_batch + depth[:, None] * right_k + columns * right_n
        a = tl.load(from_left, mask=(rows < m) & (depth[None, :] < k), other=0.0)
        b = tl.load(from_right, mask=(depth[:, None] < k) & (columns < n), other=0.0)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    inside = (rows < m) & (columns < n)
    value = sums * alpha
    if ADDED:
        more = tl.load(added + batch * added_batch + rows * added_m + columns * added_n, mask=inside)
        value += beta * more.to(tl.float32)
    tl.store(out + (batch * m + rows) * n + columns, value.to(out.dtype.element_ty), mask=inside)
'''


def _signatures(workload: Workload) -> list[Signature]:
    """The signatures in which all tensors have one type."""
    return [each for each in kept(workload, FLOATS) if len({*each.tensors}) == 1]
