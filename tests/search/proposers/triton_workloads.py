"""Helpers for the tests of the Triton templates: workloads and the template of each."""

from __future__ import annotations

from search.proposers.playbook.move import Template
from search.proposers.playbook.templates import template_for
from search.proposers.playbook.workload import Workload

HEADER = "import torch\nfrom torch import nn"
INIT = "def __init__(self):\n    super().__init__()\n    self."


def conv2d(
    *numbers: int, dilation: int = 1, bias: int = 1, epilogue: tuple[str, ...] = (), pool_pad: int = 0
) -> Workload:
    """From N C H W K R S, stride and padding."""
    n, c, h, w, k, r, s, stride, pad = numbers
    p = (h + 2 * pad - dilation * (r - 1) - 1) // stride + 1
    q = (w + 2 * pad - dilation * (s - 1) - 1) // stride + 1
    sizes = {"N": n, "C": c, "H": h, "W": w, "K": k, "R": r, "S": s, "stride_h": stride, "stride_w": stride}
    sizes |= {"pad_h": pad, "pad_w": pad, "dilation_h": dilation, "dilation_w": dilation, "groups": 1}
    sizes |= {"bias": bias, "P": p, "Q": q}
    if "maxpool" in epilogue:
        sizes |= {"pool": 3, "pool_stride": 2, "pool_pad": pool_pad}
        sizes |= {"PP": (p + 2 * pool_pad - 3) // 2 + 1, "PQ": (q + 2 * pool_pad - 3) // 2 + 1}
    layer = f"conv = nn.Conv2d({c}, {k}, ({r}, {s}), stride={stride}, padding={pad}, dilation={dilation}, "
    constructor = f"{INIT}{layer}bias={bool(bias)})"
    return Workload(
        op="conv2d", sizes=sizes, module="conv", epilogue=epilogue, header=HEADER, constructor=constructor
    )


def matmul(m: int, n: int, k: int, *lower: str) -> Workload:
    return Workload(op="matmul", sizes={"M": m, "N": n, "K": k}, lower=lower)


def softmax(rows: int, cols: int) -> Workload:
    return Workload(op="softmax", sizes={"rows": rows, "cols": cols}, lower=())


def layernorm(rows: int, cols: int, affine: int = 1, bias: int = 1) -> Workload:
    layer = f"norm = nn.LayerNorm({cols}, bias={bool(bias)})"
    sizes = {"rows": rows, "cols": cols, "affine": affine, "bias": bias}
    constructor = INIT + layer if affine else ""
    module = "norm" if affine else ""
    return Workload(
        op="layernorm", sizes=sizes, module=module, eps=1e-5, header=HEADER, constructor=constructor
    )


def template(workload: Workload) -> Template:
    found = template_for(workload.op, "triton")
    assert found is not None
    return found
