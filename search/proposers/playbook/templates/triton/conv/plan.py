"""The sizes, choices and constants that the parts of a convolution kernel share."""

from __future__ import annotations

from dataclasses import dataclass

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.templates.triton.pieces import (
    ceil_div,
    join,
    kernel,
    number,
    power_of_two,
    powers,
    round_up,
)
from search.proposers.playbook.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Code:
    """Kernels, the lines of `forward` before the main launch, and that launch with `{out}` for its output."""

    functions: tuple[str, ...]
    before: str
    launch: str


class Plan:
    """The sizes, choices and constants of one kernel."""

    def __init__(self, workload: Workload, knobs: Knobs) -> None:
        self.workload, self.knobs = workload, knobs
        self.sizes = s = dict(workload.sizes)
        self.block_m, self.block_n, self.block_k = (number(knobs, f"block_{axis}") for axis in "mnk")
        self.input, self.fuse = str(knobs["input"]), str(knobs["fuse"])
        self.precision = str(knobs["precision"])
        self.depth = self.input == "depth"
        self.half = self.precision == "fp16"
        self.dtype = "float16" if self.half else "float32"
        self.packed = knobs["weights"] == "packed"
        self.rows = knobs["order"] == "rows"
        self.table = knobs["index"] == "table"
        self.exact = knobs["columns"] == "exact"
        self.resident = bool(knobs["resident"])
        self.pooled = "maxpool" in workload.epilogue
        self.relu = "relu" in workload.epilogue
        self.pixels = s["N"] * s["P"] * s["Q"]
        self.span_s = power_of_two(s["S"]) if self.rows else s["S"]
        self.taps = s["C"] * s["R"] * self.span_s
        if self.depth:
            self._fold()
        step = 16 if self.resident else self.block_k
        self.taps_padded = round_up(self.taps, step)
        self.pieces = powers(s["K"]) if self.exact else [(0, self.block_n)]
        self.columns = round_up(s["K"], 16 if self.exact else self.block_n)
        self.hp = (s["P"] - 1) * s["stride_h"] + (s["R"] - 1) * s["dilation_h"] + 1
        self.wp = round_up((s["Q"] - 1) * s["stride_w"] + (s["S"] - 1) * s["dilation_w"] + 1, 8)
        # The padded end of a window's row or of the reduction may read beyond the last image: zeros.
        planes = ceil_div(self.taps_padded, s["R"] * self.span_s) - s["C"]
        self.padded_elements = (s["N"] * s["C"] + planes) * self.hp * self.wp + self.span_s

    def _fold(self) -> None:
        """Sizes of the input folded by the stride: HD x WD pixels of E elements, F of them in use."""
        s = self.sizes
        self.fold_rows = ceil_div(s["R"], s["stride_h"])
        self.fold_cols = ceil_div(s["S"], s["stride_w"])
        self.hd, self.wd = s["P"] + self.fold_rows - 1, s["Q"] + self.fold_cols - 1
        self.depth_used = s["C"] * s["stride_h"] * s["stride_w"]
        self.depth_elements = round_up(self.depth_used, 8)
        self.span = self.fold_cols * self.depth_elements
        self.taps = self.fold_rows * self.span

    @property
    def tail_rows(self) -> int:
        """Rows of zeros behind the last image, which the padded end of the reduction may read."""
        return ceil_div(self.taps_padded, self.span) - self.fold_rows

    @property
    def constants(self) -> dict[str, int]:
        """Every constant that a kernel may name."""
        s = self.sizes
        names = {name: s[name] for name in ("N", "C", "H", "W", "K", "R", "S", "P", "Q")}
        names |= {name.upper(): s[name] for name in s if name.startswith(("stride_", "pad_", "dilation_"))}
        names |= {"PIXELS": self.pixels, "TAPS": self.taps, "TAPS_PADDED": self.taps_padded}
        names |= {"COLUMNS": self.columns, "HP": self.hp, "WP": self.wp, "ROW": self.span_s}
        if self.depth:
            names |= {"HD": self.hd, "WD": self.wd, "E": self.depth_elements, "SPAN": self.span}
            names |= {"GAP": self.wd * self.depth_elements - self.span}
        if self.pooled:
            names |= {"POOL": s["pool"], "POOL_STRIDE": s["pool_stride"], "POOL_PAD": s["pool_pad"]}
            names |= {"PP": s["PP"], "PQ": s["PQ"]}
        if self.fuse == "window":
            names["PIXELS"] = s["N"] * s["PP"] * s["PQ"]
        names["TILES"] = ceil_div(names["PIXELS"], self.block_m)
        names |= {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k}
        names["CHANNELS"] = number(self.knobs, "channels")
        return names

    def kernel(self, name: str, arguments: list[str], doc: str, body: str, **more: int) -> str:
        """A Triton function that may name any of the constants and those in `more`."""
        return kernel(name, arguments, doc, body, {**self.constants, **more})


def image(plan: Plan) -> str:
    """The name of the tensor that the GEMM reads its windows from."""
    return {"plain": "x", "half": "half", "padded": "padded", "depth": "folded"}[plan.input]


def decode(plan: Plan) -> str:
    """Lines that turn tap `k` into channel c, row r and column s of the window."""
    cut = "ROW" if plan.rows else "S"
    return join(f"c, r, s = k // (R * {cut}), k // {cut} % R, k % {cut}")
