"""Helpers for the seed tests: cases, their inputs, reference results, and what is wrong with an output."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.reference.accuracy.comparison import compare

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).parents[3]
SEEDS = ROOT / "kernel_library" / "seeds"
HALVES = ("float16", "bfloat16")
FLOATS = ("float32", *HALVES)
HALF, SINGLE = ("float16",), ("float32",)

Tensors = list[Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of a seed's function. `shapes` are those of its tensors, drawn from a normal distribution."""

    seed: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = FLOATS
    change: str = ""
    """What `changed` does to the tensors."""
    more: tuple[Any, ...] = ()
    """Further arguments."""

    @property
    def name(self) -> str:
        sizes = ", ".join("×".join(map(str, shape)) for shape in self.shapes)
        return f"{self.seed}: {sizes} {self.more or ''} {self.change}".strip()


def changed(tensors: Tensors, change: str) -> Tensors:
    """The tensors of a case: extreme values, views, what is not drawn from a normal distribution."""
    import torch

    x, *rest = tensors
    generator = torch.Generator(x.device).manual_seed(1)
    if change.startswith("classes"):
        rest = [torch.randint(x.shape[1], x.shape[:1], generator=generator, device=x.device)]
    if change.endswith("ignored"):
        rest[0][1::2] = -100
    if change == "weights" or change.startswith("weights_"):
        rest = [each * each[0].numel() ** -0.5 for each in rest]
    if change.endswith("infinities"):
        x[0], x[1, 1:], x[2, ::3], x[2, -1] = -torch.inf, -torch.inf, -torch.inf, 1e4
        if change == "with_infinities":
            x[2, 5] = torch.inf
    if change.endswith("huge"):
        limit = torch.finfo(x.dtype).max
        x[0], x[1], x[2, ::2], x[2, 1::2] = -limit, limit, limit, -limit
    if change.endswith("large"):
        x *= 100
    if change == "far_from_zero":
        x = x * 0.1 + 100
    if change == "of_unlike_sizes":
        x, rest = x * 1e-30, [rest[0] * 1e20]
    if change == "without_weights":
        rest = [None for _ in rest]
    if change == "without_bias":
        rest[-1] = None
    if change == "unaligned":
        whole = x.new_zeros(x.numel() + 1)
        whole[1:] = x.flatten()
        x = whole[1:].view(x.shape)
    if change == "transposed":
        x, rest = x.mT.contiguous().mT, [e.mT.contiguous().mT if e.dim() > 1 else e for e in rest]
    if change == "heads_inside":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    return [x, *rest]


def references() -> dict[str, Callable[..., torch.Tensor]]:
    import torch
    from torch.nn import functional as f

    def layernorm(x: Any, w: Any, b: Any, eps: float, dims: int) -> Any:
        return f.layer_norm(x, x.shape[-dims:], w, b, eps)

    def rotary(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)

    def conv2d(x: Any, w: Any, b: Any, stride: int, padding: int) -> Any:
        return f.conv2d(x, w, b, stride, padding)

    return {
        "softmax": lambda x: f.softmax(x, dim=-1),
        "layernorm": layernorm,
        "rmsnorm": lambda x, w, eps: f.rms_norm(x, x.shape[-1:], w, eps),
        "sum_rows": lambda x: x.sum(-1),
        "cross_entropy": lambda x, t: f.cross_entropy(x, t, reduction="none"),
        "rotary": rotary,
        "matmul": torch.matmul,
        "conv2d": conv2d,
        "conv2d_relu_maxpool": lambda *args: f.max_pool2d(f.relu(conv2d(*args)), 3, 2),
        "swiglu": lambda x, g, u, d: (f.silu(x @ g.T) * (x @ u.T)) @ d.T,
        "attention": lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
    }


def problem_of(case: Case, dtype: str, device: str) -> str:
    """What is wrong with the seed's output; "" where nothing is. The tolerance is the evaluator's `strict`,
    but for the convolutions of float32, which multiply in half precision."""
    import torch

    op = case.seed.split("/")[0]
    spec = importlib.util.spec_from_file_location("seed", SEEDS / case.seed / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = torch.Generator(device).manual_seed(0)
    tensors = [
        torch.randn(shape, generator=generator, device=device).to(getattr(torch, dtype))
        for shape in case.shapes
    ]
    tensors = changed(tensors, case.change)
    before = [None if each is None else each.clone() for each in tensors]
    out = getattr(module, op)(*tensors, *case.more)
    if any(a is not None and not torch.equal(a, b) for a, b in zip(tensors, before, strict=True)):
        return "an input was changed"
    wide = [each.double() if each is not None and each.is_floating_point() else each for each in tensors]
    reference = references()[op]
    exact, eager = reference(*wide, *case.more), reference(*tensors, *case.more)
    if out.dtype != eager.dtype or out.shape != eager.shape:
        return f"{out.dtype} {tuple(out.shape)} instead of {eager.dtype} {tuple(eager.shape)}"
    if out.numel() == 0:
        return ""
    rounds = "conv2d" in op and dtype == "float32"
    return compare(out, exact, eager, "kernelbench" if rounds else "strict").problem
