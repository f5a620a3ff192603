"""Kernels of searches at shapes that their searches did not see, odd ones among them: the patterns of their
cards go no further. Those of router and residual + layer norm name the measured shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernel_library.catalogue.best import load
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.originals import original_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
HEADS = [(1, 32, 8, 3001), (3, 12, 4, 197), (2, 9, 3, 64), (1, 8, 8, 1000), (2, 14, 2, 1), (5, 6, 1, 129)]
CACHES = [
    (1, 32, 8, 128, 8191),
    (5, 40, 8, 128, 301),
    (3, 6, 2, 64, 77),
    (2, 8, 8, 80, 1),
    (64, 16, 2, 96, 500),
]
LINES = [(1, 4096), (64, 4095), (3, 1), (1000, 1001), (529, 8192), (7, 32776), (4096, 12288)]
QUANTISED = [(1, 8192, 8192), (1, 4096, 1000), (7, 128, 5), (9, 384, 33), (17, 4096, 14336), (1, 14336, 4096)]
LOSSES = [(1, 8, 5), (333, 1000, 1001), (4095, 2048, 32768), (64, 72, 50257)]
TURNED = [
    (2, 77, 5, 1, 96),
    (1, 1, 32, 8, 128),
    (3, 513, 12, 12, 64),
    (1, 4095, 16, 2, 128),
    (7, 33, 7, 3, 80),
]
WINDOWS = [
    (1, 32, 8, 3001, 128),
    (3, 12, 4, 197, 64),
    (2, 14, 2, 1, 128),
    (1, 6, 1, 1025, 96),
    (2, 8, 8, 4096, 80),
]
BIASED = [
    (2, 3, 197, 80),
    (1, 16, 1000, 64),
    (3, 8, 129, 64),
    (2, 4, 64, 128),
    (5, 1, 1, 64),
    (1, 2, 2049, 64),
]
IMAGES = [(2, 32, 17, 17), (1, 320, 64, 64), (4, 512, 1, 1), (3, 16, 33, 7), (8, 128, 256, 256)]
EXPERTS = [(1, 8), (100, 60), (33, 256), (4097, 128), (8, 384)]
SHAPES: dict[str, Sequence[Sequence[Sequence[int]]]] = {
    "grouped_query_attention/cuda": [
        [(b, h, n, 128), (b, kv, n, 128), (b, kv, n, 128)] for b, h, kv, n in HEADS
    ],
    "decode_attention/triton": [
        [(b, h, 1, size), (b, kv, n, size), (b, kv, n, size)] for b, h, kv, size, n in CACHES
    ],
    "residual_rmsnorm/cuda": [[each, each] for each in LINES],
    "int4_linear/cuda": [[(rows, features), (outs, features // 2)] for rows, features, outs in QUANTISED],
    "linear_cross_entropy/cuda": [[(rows, width), (words, width)] for rows, width, words in LOSSES],
    "qk_norm_rotary/cuda": [[(b, n, h, size), (b, n, k, size)] for b, n, h, k, size in TURNED],
    "sliding_window/cuda": [
        [(b, h, n, size), (b, kv, n, size), (b, kv, n, size)] for b, h, kv, n, size in WINDOWS
    ],
    "biased/cuda": [[*[(b, h, n, size)] * 3, (1, h, n, n)] for b, h, n, size in BIASED],
    "groupnorm_silu/cuda": [[each] for each in IMAGES],
    "residual_layernorm/cuda": [[each, each] for each in LINES],
    "router/cuda": [[each] for each in EXPERTS],
}


def drawn(entry: str, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The first inputs of a call in bfloat16, but for packed weights and a router's logits."""
    some = [torch.randn(*shape, device="cuda").bfloat16() for shape in shapes]
    if entry == "int4_linear/cuda":
        some[1] = torch.randint(256, shapes[1], dtype=torch.uint8, device="cuda")
    if entry == "router/cuda":
        some[0] = torch.randn(*shapes[0], device="cuda")  # no two alike
    if entry == "decode_attention/triton":
        batch, _, capacity, _ = shapes[1]
        some.append(torch.randint(1, capacity + 1, (batch,), device="cuda"))
    if entry == "linear_cross_entropy/cuda":
        some[1] /= shapes[1][1] ** 0.5
    return some


@pytest.mark.parametrize(
    ("entry", "shapes"), [(entry, shapes) for entry, several in SHAPES.items() for shapes in several]
)
def test_it_is_right_there(entry: str, shapes: Sequence[Sequence[int]], tmp_path: Path) -> None:
    kernel = next(each for each in FolderLibrary(tmp_path).entries() if each.id == entry)
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    if capability not in kernel.architectures:
        pytest.skip(f"{entry} is not for compute capability {capability}")
    torch.manual_seed(0)
    original = original_of(kernel.op, kernel)
    assert original is not None
    call = original.arguments(*drawn(entry, shapes))
    wide = [
        each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for each in call
    ]
    found, right = load(kernel)(*call), original.function(*wide)
    for one, other in zip(
        *(each if isinstance(each, tuple) else (each,) for each in (found, right)), strict=True
    ):
        error = (one.double() - other).norm() / other.norm().clamp_min(1e-9)
        assert error < 1e-2, float(error)
