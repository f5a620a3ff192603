"""The C++ seeds are right: odd sizes, views, extreme values, on this machine's CPU. Judged by the evaluator's
`strict` tolerance, but for the convolutions, which may multiply in half precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evaluators.records.problem import Kernel
from evaluators.reference.accuracy.comparison import compare
from kernel_library.catalogue.best import module_of

if TYPE_CHECKING:
    import torch

SEEDS = Path(__file__).parents[3] / "kernel_library" / "seeds"
POOLED = "conv2d_relu_maxpool"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of a seed's function. `shapes` are those of its tensors, drawn from a normal distribution."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    change: str = ""
    """What `changed` does to the tensors."""
    more: tuple[Any, ...] = ()
    """Further arguments."""

    @property
    def name(self) -> str:
        sizes = ", ".join("×".join(map(str, shape)) for shape in self.shapes)
        return f"{self.op}: {sizes} {self.more or ''} {self.change}".strip()


def softmax(*shape: int, change: str = "") -> Case:
    return Case(op="softmax", shapes=(shape,), change=change)


def layernorm(*shape: int, dims: int = 1, change: str = "") -> Case:
    shapes = (shape, shape[-dims:], shape[-dims:])
    return Case(op="layernorm", shapes=shapes, change=change, more=(1e-5, dims))


def matmul(m: int, n: int, k: int, change: str = "") -> Case:
    return Case(op="matmul", shapes=((m, k), (k, n)), change=change)


def conv2d(*numbers: int, op: str = "conv2d", change: str = "weights") -> Case:
    """From N C H W K R S, stride and padding."""
    n, c, h, w, k, r, s, stride, padding = numbers
    shapes = ((n, c, h, w), (k, c, r, s), (k,))
    return Case(op=op, shapes=shapes, more=(stride, padding), change=change)


CASES = (
    softmax(5, 1000),
    softmax(3, 77, change="transposed"),
    softmax(2, 3, 4097),
    softmax(2, 50257, change="unaligned"),
    softmax(3, 65536),
    softmax(3, 4099, change="with_infinities"),
    softmax(3, 20000, change="with_infinities"),
    softmax(4, 50, change="huge"),
    softmax(4, 40001, change="huge"),
    softmax(4, 1),
    softmax(0, 16),
    layernorm(5, 1000),
    layernorm(3, 77, change="transposed"),
    layernorm(2, 3, 7, 11, dims=2),
    layernorm(4099, 16),
    layernorm(3, 65537),
    layernorm(2, 3, 300, 301, dims=2),
    layernorm(1, 100001, change="unaligned"),
    layernorm(5, 32, 2200, dims=2, change="far_from_zero"),
    layernorm(3, 1000, change="far_from_zero"),
    layernorm(3, 500, change="without_weights"),
    layernorm(3, 70, change="without_bias"),
    layernorm(3, 5, change="large"),
    layernorm(4, 1),
    layernorm(0, 16),
    matmul(150, 90, 77),
    matmul(768, 768, 768),
    matmul(13, 1601, 257),
    matmul(200, 256, 128, change="transposed"),
    matmul(70, 60, 200, change="of_unlike_sizes"),
    matmul(1, 1, 1),
    matmul(1, 1000, 1000),
    matmul(1000, 1, 1000),
    matmul(3, 5, 0),
    matmul(0, 5, 7),
    conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2),
    conv2d(1, 3, 224, 224, 96, 11, 11, 4, 2),
    conv2d(2, 3, 39, 35, 96, 11, 11, 4, 2, change="weights_and_transposed"),
    conv2d(1, 5, 17, 19, 24, 3, 7, 3, 1),
    conv2d(1, 40, 7, 9, 150, 3, 3, 1, 1),
    conv2d(1, 4, 9, 9, 5, 1, 1, 1, 0, change="weights_without_bias"),
    conv2d(1, 1, 5, 40, 100, 2, 3, 1, 3),
    conv2d(3, 2, 4, 4, 3, 4, 4, 2, 0),
    conv2d(2, 3, 4, 40, 33, 3, 3, 5, 1),
    conv2d(0, 3, 8, 8, 4, 3, 3, 1, 0),
    conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2, op=POOLED),
    conv2d(1, 3, 224, 224, 96, 11, 11, 4, 2, op=POOLED),
    conv2d(2, 3, 99, 35, 96, 11, 11, 4, 2, op=POOLED, change="weights_and_transposed"),
    conv2d(1, 5, 27, 69, 40, 3, 7, 3, 1, op=POOLED, change="weights_without_bias"),
    softmax(3, 5000, change="with_a_nan"),
    layernorm(3, 1000, change="with_a_nan"),
    matmul(70, 60, 200, change="with_a_nan"),
    conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2, change="weights_with_a_nan"),
    conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2, op=POOLED, change="weights_with_a_nan"),
)

Tensors = list[Any]


def changed(tensors: Tensors, change: str) -> Tensors:
    """The tensors of a case: extreme values, views, what is not drawn from a normal distribution."""
    import torch

    x, *rest = tensors
    if change.startswith("weights"):
        rest = [each * each[0].numel() ** -0.5 for each in rest]
    if change == "with_infinities":
        x[0], x[1, :-1], x[2, ::3], x[2, -1] = -torch.inf, -torch.inf, -torch.inf, 1e4
        x = torch.cat([x, x[2:]])
        x[3, 5] = torch.inf
    if change == "huge":
        limit = torch.finfo(x.dtype).max
        x[0], x[1], x[2, ::2], x[2, 1::2] = -limit, limit, limit, -limit
    if change == "large":
        x *= 1e4
    if change == "far_from_zero":
        x = x * 0.1 + 100
    if change == "of_unlike_sizes":
        x, rest = x * 1e-30, [rest[0] * 1e20]
    if change == "without_weights":
        rest = [None for _ in rest]
    if change.endswith("without_bias"):
        rest[-1] = None
    if change.endswith("with_a_nan"):
        x.view(-1)[x.numel() // 2] = torch.nan
    if change == "unaligned":
        whole = x.new_zeros(x.numel() + 1)
        whole[1:] = x.flatten()
        x = whole[1:].view(x.shape)
    if change.endswith("transposed"):
        x, rest = x.mT.contiguous().mT, [e.mT.contiguous().mT if e.dim() > 1 else e for e in rest]
    return [x, *rest]


def references() -> dict[str, Callable[..., torch.Tensor]]:
    from torch.nn import functional as f

    def layernorm(x: Any, w: Any, b: Any, eps: float, dims: int) -> Any:
        return f.layer_norm(x, x.shape[-dims:], w, b, eps)

    def conv2d(x: Any, w: Any, b: Any, stride: int, padding: int) -> Any:
        return f.conv2d(x, w, b, stride, padding)

    return {
        "softmax": lambda x: f.softmax(x, dim=-1),
        "layernorm": layernorm,
        "matmul": lambda a, b: a @ b,
        "conv2d": conv2d,
        POOLED: lambda *args: f.max_pool2d(f.relu(conv2d(*args)), 3, 2),
    }


def seed(op: str) -> Any:
    """The seed's module. It is compiled once, for all processes and later runs: in the cache folder and under
    a lock that ends with its process, so that an interrupted run leaves nobody waiting."""
    source = (SEEDS / op / "cpp" / "kernel.py").read_text(encoding="utf-8")
    return module_of(Kernel(source=source, language="cpp"))


def problem_of(case: Case) -> str:
    """What is wrong with the seed's output; "" where nothing is."""
    import torch

    generator = torch.Generator().manual_seed(0)
    tensors = changed([torch.randn(shape, generator=generator) for shape in case.shapes], case.change)
    before: Tensors = [None if each is None else each.clone() for each in tensors]
    out = getattr(seed(case.op), case.op)(*tensors, *case.more)
    pairs = [(a, b) for a, b in zip(tensors, before, strict=True) if a is not None]
    if not all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs):
        return "an input was changed"
    wide = [None if each is None else each.double() for each in tensors]
    reference = references()[case.op]
    exact, eager = reference(*wide, *case.more), reference(*tensors, *case.more)
    if out.dtype != eager.dtype or out.shape != eager.shape:
        return f"{out.dtype} {tuple(out.shape)} instead of {eager.dtype} {tuple(eager.shape)}"
    if out.numel() == 0:
        return ""
    return compare(out, exact, eager, "kernelbench" if "conv2d" in case.op else "strict").problem


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_seed_is_right(case: Case) -> None:
    pytest.importorskip("torch")
    assert problem_of(case) == ""


@pytest.mark.slow
@pytest.mark.parametrize("op", ["softmax", "layernorm", "matmul", "conv2d", POOLED])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_are_refused(op: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    case = next(case for case in CASES if case.op == op)
    tensors = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape in case.shapes]
    with pytest.raises(TypeError, match=dtype):
        getattr(seed(op), op)(*tensors, *case.more)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_will_do(threads: int) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for case in (
            softmax(7, 999),
            layernorm(5, 70000),
            matmul(99, 200, 300),
            conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2),
        ):
            assert problem_of(case) == ""
    finally:
        torch.set_num_threads(before)
