"""The Gluon seeds are right on GPUs of compute capability 9.0, which they are made for: whole tiles of
several sizes, all their dtypes, views, extreme values, judged as the Triton seeds are. Elsewhere: what they
refuse, and what needs no launch. Triton's interpreter does not run Gluon."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from evaluators.reference.accuracy.comparison import compare
from tests.kernel_library.seeds.seed_cases import HALF, HALVES, SEEDS, Case, problem_of

if TYPE_CHECKING:
    import torch

SINGLE = ("float32",)


def matmul(m: int, n: int, k: int, seed: str = "gluon_half", change: str = "") -> Case:
    dtypes = SINGLE if seed == "gluon_float32" else HALVES
    return Case(seed=f"matmul/{seed}", shapes=((m, k), (k, n)), change=change, dtypes=dtypes)


def swiglu(*x: int, hidden: int, out: int = 0, change: str = "weights") -> Case:
    shapes = (x, (hidden, x[-1]), (hidden, x[-1]), (out or x[-1], hidden))
    return Case(seed="swiglu/gluon", shapes=shapes, dtypes=HALVES, change=change)


def attention(*shape: int, change: str = "", dtypes: tuple[str, ...] = HALVES) -> Case:
    return Case(seed="attention/gluon", shapes=(shape,) * 3, dtypes=dtypes, change=change)


FULL_F32 = "gluon_float32"
CASES = (
    matmul(128, 256, 64),
    matmul(128, 256, 4096),
    matmul(384, 768, 192),
    matmul(1152, 2560, 320),
    matmul(2176, 2304, 128),
    matmul(256, 512, 256, change="transposed"),
    matmul(256, 512, 256, change="unaligned"),
    matmul(256, 512, 256, change="large"),
    matmul(4096, 4096, 4096),
    matmul(128, 256, 0),
    matmul(128, 128, 64, FULL_F32),
    matmul(128, 128, 4096, FULL_F32),
    matmul(384, 640, 192, FULL_F32),
    matmul(1152, 2560, 320, FULL_F32),
    matmul(256, 384, 256, FULL_F32, change="transposed"),
    matmul(256, 384, 256, FULL_F32, change="of_unlike_sizes"),
    matmul(4096, 4096, 4096, FULL_F32),
    matmul(128, 128, 0, FULL_F32),
    swiglu(128, 256, hidden=128),
    swiglu(384, 512, hidden=640),
    swiglu(2, 3, 64, 256, hidden=384),
    swiglu(128, 64, hidden=128, out=512),
    swiglu(1152, 1280, hidden=2176),
    swiglu(128, 256, hidden=128, change="weights_and_large"),
    swiglu(2048, 4096, hidden=11008),
    attention(1, 1, 128, 128),
    attention(1, 2, 256, 64),
    attention(2, 3, 384, 128),
    attention(3, 47, 256, 128),
    attention(2, 67, 384, 64),
    attention(1, 3, 4096, 64),
    attention(1, 2, 384, 128, change="large"),
    attention(1, 2, 384, 64, change="large"),
    attention(1, 4, 256, 128, change="heads_inside"),
    attention(1, 2, 256, 128, change="unaligned"),
    attention(1, 32, 2048, 128, dtypes=HALF),
)


def function(seed: str) -> Any:
    """The seed's plain function; skips where there is no Gluon."""
    pytest.importorskip("triton.experimental.gluon")
    spec = importlib.util.spec_from_file_location("seed", SEEDS / seed / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, seed.split("/")[0])


def tensors(dtype: str, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch = pytest.importorskip("torch")
    return [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape in shapes]


@pytest.fixture
def hopper() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a CUDA GPU of compute capability 9.0")


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_seed_is_right_on_a_gpu(case: Case) -> None:
    problems = {dtype: problem_of(case, dtype, "cuda") for dtype in case.dtypes}
    assert problems == dict.fromkeys(case.dtypes, "")


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("sizes", [(1e-19, 1e-19), (1e36, 1e-30), (1e-30, 1e36), (1e18, 1e18), (0.0, 1.0)])
def test_the_float32_product_has_float32s_range(sizes: tuple[float, float]) -> None:
    """The scales that bring its operands into float16's range multiply to what is no float32."""
    import torch

    torch.manual_seed(0)
    a, b = (torch.randn(256, 256, device="cuda") * size for size in sizes)
    out = function("matmul/gluon_float32")(a, b)
    assert compare(out, a.double() @ b.double(), a @ b, "strict").problem == ""


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "seed", ["matmul/gluon_half", "matmul/gluon_float32", "attention/gluon", "swiglu/gluon"]
)
def test_a_seed_repeats_itself(seed: str) -> None:
    """A slot that is freed too early would be overwritten in some of many launches only."""
    import torch

    torch.manual_seed(0)
    dtype = torch.float32 if seed.endswith("float32") else torch.float16
    shapes = {
        "attention": [(1, 40, 1024, 128)] * 3,
        "swiglu": [(1024, 1024)] * 4,
        "matmul": [(2048, 2048)] * 2,
    }
    name = seed.split("/")[0]
    inputs = [torch.randn(shape, device="cuda", dtype=dtype) * 0.1 for shape in shapes[name]]
    run = function(seed)
    first = run(*inputs)
    assert all(torch.equal(run(*inputs), first) for _ in range(50))


REFUSED_DTYPES = (
    ("matmul/gluon_half", ("float32", "float32")),
    ("matmul/gluon_half", ("float16", "bfloat16")),
    ("matmul/gluon_float32", ("float16", "float16")),
    ("matmul/gluon_float32", ("float32", "float64")),
    ("swiglu/gluon", ("float32",) * 4),
    ("swiglu/gluon", ("float16", "float16", "float16", "bfloat16")),
    ("attention/gluon", ("float32",) * 3),
    ("attention/gluon", ("float16", "float16", "bfloat16")),
)


@pytest.mark.parametrize(("seed", "dtypes"), REFUSED_DTYPES)
def test_other_dtypes_are_refused(seed: str, dtypes: tuple[str, ...]) -> None:
    run = function(seed)
    with pytest.raises(TypeError, match=r"^\S+ of torch\.\w+.* must be "):
        run(*(tensors(dtype, (256, 256))[0] for dtype in dtypes))


REFUSED_SHAPES = (
    ("matmul/gluon_half", ((64, 64), (64, 256))),
    ("matmul/gluon_half", ((128, 64), (64, 128))),
    ("matmul/gluon_half", ((128, 32), (32, 256))),
    ("matmul/gluon_half", ((128, 64), (128, 256))),
    ("matmul/gluon_half", ((1, 128, 64), (1, 64, 256))),
    ("matmul/gluon_float32", ((192, 64), (64, 128))),
    ("matmul/gluon_float32", ((128, 64), (64, 64))),
    ("matmul/gluon_float32", ((128, 96), (96, 128))),
    ("matmul/gluon_float32", ((128, 64), (64,))),
    ("swiglu/gluon", ((100, 256), (128, 256), (128, 256), (256, 128))),
    ("swiglu/gluon", ((128, 256), (64, 256), (64, 256), (256, 64))),
    ("swiglu/gluon", ((128, 128), (128, 128), (128, 128), (128, 128))),
    ("swiglu/gluon", ((128, 256), (128, 256), (256, 256), (256, 128))),
    ("swiglu/gluon", ((128, 256), (128, 256), (128, 256), (256, 256))),
    ("attention/gluon", ((1, 2, 64, 128),) * 3),
    ("attention/gluon", ((1, 2, 128, 96),) * 3),
    ("attention/gluon", ((1, 2, 128, 256),) * 3),
    ("attention/gluon", ((2, 128, 64),) * 3),
    ("attention/gluon", ((1, 2, 128, 64), (1, 1, 128, 64), (1, 1, 128, 64))),
)


@pytest.mark.parametrize(("seed", "shapes"), REFUSED_SHAPES)
def test_shapes_that_are_no_whole_tiles_are_refused(seed: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    run = function(seed)
    with pytest.raises(ValueError, match=r"^\S+ of \(.*; made for \[[^\n]*$"):
        run(*tensors("float32" if seed.endswith("float32") else "float16", *shapes))


NOTHING_TO_DO = (
    ("matmul/gluon_half", ((0, 64), (64, 256)), (0, 256)),
    ("matmul/gluon_half", ((128, 0), (0, 256)), (128, 256)),
    ("matmul/gluon_float32", ((128, 64), (64, 0)), (128, 0)),
    ("matmul/gluon_float32", ((128, 0), (0, 128)), (128, 128)),
    ("swiglu/gluon", ((2, 0, 256), (128, 256), (128, 256), (256, 128)), (2, 0, 256)),
    ("swiglu/gluon", ((2, 64, 0), (128, 0), (128, 0), (256, 128)), (2, 64, 256)),
    ("swiglu/gluon", ((128, 256), (0, 256), (0, 256), (256, 0)), (128, 256)),
    ("attention/gluon", ((0, 2, 128, 64),) * 3, (0, 2, 128, 64)),
    ("attention/gluon", ((1, 2, 0, 128),) * 3, (1, 2, 0, 128)),
)


@pytest.mark.parametrize(("seed", "shapes", "shape"), NOTHING_TO_DO)
def test_sums_of_nothing_need_no_launch(
    seed: str, shapes: tuple[tuple[int, ...], ...], shape: tuple[int, ...]
) -> None:
    out = function(seed)(*tensors("float32" if seed.endswith("float32") else "float16", *shapes))
    assert out.shape == shape
    assert not out.any()
