"""The fastest function on a GPU: never far behind eager PyTorch or torch.compile."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

from kernel_library import best
from kernel_library.catalogue.measuring import milliseconds
from kernel_library.catalogue.originals import ORIGINALS, compiled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def drawn(each: int, seed: int = 0) -> list[tuple[str, list[tuple[int, ...]], torch.dtype]]:
    """For each of nine families, `each` cases with sizes between those that people use, as random as the
    seed."""
    chance = random.Random(seed)

    def size(low: int, high: int) -> int:
        """Log-uniform; half of the sizes are multiples of 64."""
        found = round(math.exp(chance.uniform(math.log(low), math.log(high))))
        return max(found // 64 * 64, low) if chance.random() < 0.5 else found

    def shapes(op: str) -> list[tuple[int, ...]]:
        rows, columns = size(64, 16384), size(64, 65536)
        width = chance.choice((32, 64, 128))
        match op:
            case "matmul":
                inner = size(64, 8192)
                return [(size(16, 8192), inner), (inner, size(16, 8192))]
            case "rotary":
                return [(chance.choice((1, 2, 8)), chance.choice((8, 32)), size(64, 4096), width)]
            case "layernorm":
                return [(chance.choice((1, 4)), rows, min(columns, 16384))]
            case "swiglu":
                return [(min(rows, 4096), min(columns, 8192) // 2 * 2)]
            case "conv2d":
                channels, side = chance.choice((3, 64, 128, 256)), size(14, 224)
                kernel = (chance.choice((64, 128)), channels, 3, 3)
                return [(chance.choice((1, 4, 16)), channels, side, side), kernel]
        return [(rows, columns)]

    families = (
        "matmul",
        "conv2d",
        "cross_entropy",
        "softmax",
        "layernorm",
        "rmsnorm",
        "sum",
        "rotary",
        "swiglu",
    )
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    return [(op, shapes(op), chance.choice(dtypes)) for op in families for _ in range(each)]


@pytest.mark.parametrize(
    ("op", "shapes", "dtype"),
    [
        ("matmul", [(6000, 8192), (8192, 128)], torch.float16),
        ("matmul", [(512, 4096), (4096, 512)], torch.float16),
        ("matmul", [(512, 512), (512, 512)], torch.bfloat16),
        ("matmul", [(3000, 2000), (2000, 1000)], torch.float32),
        ("conv2d", [(4, 128, 56, 56), (128, 128, 3, 3)], torch.float16),
        ("conv2d", [(4, 128, 56, 56)], torch.float32),
        ("cross_entropy", [(512, 10)], torch.float32),
        ("cross_entropy", [(100000, 10)], torch.bfloat16),
        ("softmax", [(512, 77)], torch.float32),
        ("layernorm", [(3, 1000, 768)], torch.bfloat16),
        ("rmsnorm", [(8192, 128)], torch.float32),
        ("sum", [(64, 100000)], torch.float32),
        ("attention", [(2, 16, 1000, 64)], torch.float16),
        ("rotary", [(1, 8, 100, 64)], torch.float16),
        ("swiglu", [(128, 2048)], torch.bfloat16),
        *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in drawn(8)),
    ],
)
def test_the_fastest_is_returned(
    op: str,
    shapes: list[tuple[int, ...]],
    dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    like = [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]
    found, original = best(op, like=like, root=tmp_path / "library"), ORIGINALS[op]
    arguments = original.arguments(*like)
    runs = {"eager": original.function, "compile": compiled(original), "best": found}
    times = milliseconds(runs, arguments)
    slack_ms = 0.002
    assert times["best"] <= 1.1 * min(times.values()) + slack_ms, (times, found)
    result, expected = found(*arguments).float(), original.function(*arguments).float()
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


def test_grouped_queries(tmp_path: Path) -> None:
    q, k = (torch.randn(2, heads, 256, 64, device="cuda", dtype=torch.float16) for heads in (16, 8))
    without = best("attention", like=[q, k, k], root=tmp_path, measure=False)
    assert without.original
    assert "no kernel for attention of float16 2x16x256x64, 2x8x256x64" in without.why
    attention = best("attention", like=q, root=tmp_path, measure=False)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attention(q, k, k), expected)
