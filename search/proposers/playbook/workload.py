"""Reads a reference and says which operation it is, with its sizes (`Workload`), by way of torch.fx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The operation that a reference computes, as the templates need it.

    `op` is `conv2d`, `matmul`, `softmax` or `layernorm`. `sizes` are integers by name; `module` is the
    attribute of `Model` that holds the weights ("" where there are none); `epilogue` lists what follows
    the operation (`relu`, `maxpool`), its sizes being in `sizes` too. `header` and `constructor` are the
    parts of the reference's source that `ModelNew` keeps: its imports and constants, and the lines of
    `Model.__init__`.

    Sizes by op: conv2d N C H W K R S stride_h stride_w pad_h pad_w dilation_h dilation_w groups bias P Q
    (output height and width), with maxpool also pool pool_stride pool_pad PP PQ; matmul M N K;
    softmax rows cols; layernorm rows cols (normalised elements) affine.
    """

    op: str
    sizes: Mapping[str, int]
    module: str = ""
    epilogue: tuple[str, ...] = ()
    eps: float = 0.0
    header: str = ""
    constructor: str = ""
    tolerance: str = "kernelbench"
