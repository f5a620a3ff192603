"""The Triton seeds give correct results: small cases in Triton's interpreter, all cases on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.kernel_library.seeds.seed_cases import FLOATS, HALF, HALVES, ROOT, SINGLE, Case, problem_of


def softmax(
    *shape: int, change: str = "", dtypes: tuple[str, ...] = FLOATS, seed: str = "softmax/triton"
) -> Case:
    return Case(seed=seed, shapes=(shape,), change=change, dtypes=dtypes)


def layernorm(*shape: int, dims: int = 1, change: str = "", dtypes: tuple[str, ...] = FLOATS) -> Case:
    weights = (shape[-dims:],) * 2
    more = (1e-5, dims)
    shapes = (shape, *weights)
    return Case(seed="layernorm/triton", shapes=shapes, change=change, more=more, dtypes=dtypes)


def rmsnorm(
    *shape: int, change: str = "", dtypes: tuple[str, ...] = FLOATS, seed: str = "rmsnorm/triton"
) -> Case:
    shapes = (shape, shape[-1:])
    return Case(seed=seed, shapes=shapes, change=change, more=(1e-6,), dtypes=dtypes)


def sum_rows(*shape: int, change: str = "", dtypes: tuple[str, ...] = FLOATS) -> Case:
    return Case(seed="sum_rows/triton", shapes=(shape,), change=change, dtypes=dtypes)


def cross_entropy(rows: int, classes: int, change: str = "classes", dtypes: tuple[str, ...] = FLOATS) -> Case:
    shapes = ((rows, classes), (rows,))
    return Case(seed="cross_entropy/triton", shapes=shapes, change=change, dtypes=dtypes)


def rotary(*shape: int, change: str = "", dtypes: tuple[str, ...] = FLOATS) -> Case:
    angles = (shape[2], shape[3] // 2)
    return Case(seed="rotary/triton", shapes=(shape, angles, angles), change=change, dtypes=dtypes)


def matmul(m: int, n: int, k: int, seed: str = "triton_half", change: str = "") -> Case:
    dtypes = ("float32",) if seed == "triton_float32" else HALVES
    return Case(seed=f"matmul/{seed}", shapes=((m, k), (k, n)), change=change, dtypes=dtypes)


def conv2d(*numbers: int, op: str = "conv2d", change: str = "", dtypes: tuple[str, ...] = SINGLE) -> Case:
    """From N C H W K R S, stride and padding."""
    n, c, h, w, k, r, s, stride, padding = numbers
    shapes = ((n, c, h, w), (k, c, r, s), (k,))
    seed = f"{op}/triton"
    return Case(seed=seed, shapes=shapes, more=(stride, padding), dtypes=dtypes, change=change)


def swiglu(rows: int, features: int, hidden: int, change: str = "weights") -> Case:
    shapes = ((rows, features), (hidden, features), (hidden, features), (features, hidden))
    return Case(seed="swiglu/triton", shapes=shapes, dtypes=HALVES, change=change)


def attention(*shape: int, change: str = "") -> Case:
    return Case(seed="attention/triton", shapes=(shape,) * 3, dtypes=HALVES, change=change)


POOLED = "conv2d_relu_maxpool"
FULL_F32 = "triton_float32"
SMALL = (
    softmax(5, 1000),
    softmax(3, 77, change="transposed"),
    softmax(37, 200),
    softmax(2, 3, 4097),
    softmax(3, 9001, dtypes=("float16",)),
    softmax(2, 40000),
    softmax(3, 50257, dtypes=("float16",)),
    softmax(2, 50257, change="unaligned"),
    softmax(1, 65536, dtypes=("float32",)),
    softmax(3, 4099, change="with_infinities"),
    softmax(4, 50, change="huge"),
    softmax(4, 4099, change="huge"),
    softmax(4, 1),
    softmax(0, 16),
    layernorm(5, 1000),
    layernorm(3, 77, change="transposed"),
    layernorm(2, 3, 7, 11, dims=2),
    layernorm(4099, 16, dtypes=("float32",)),
    layernorm(37, 200, change="far_from_zero"),
    layernorm(3, 1500),
    layernorm(3, 9001, change="far_from_zero"),
    layernorm(2, 8192),
    layernorm(3, 40000),
    layernorm(257, 33000, change="far_from_zero", dtypes=("float16",)),
    layernorm(5, 32, 1200, dims=2, change="far_from_zero"),
    layernorm(3, 500, change="without_weights"),
    layernorm(2, 40000, change="without_weights", dtypes=("float32",)),
    layernorm(3, 1000, change="far_from_zero"),
    rmsnorm(5, 1000),
    rmsnorm(3, 77, change="transposed"),
    rmsnorm(4099, 16, dtypes=("float16",)),
    rmsnorm(37, 200),
    rmsnorm(3, 5000),
    rmsnorm(2, 20000),
    rmsnorm(2, 40000),
    rmsnorm(3, 500, change="without_weights"),
    rmsnorm(3, 500, change="large"),
    softmax(37, 200, seed="softmax/triton_training"),
    softmax(2, 3, 4097, seed="softmax/triton_training"),
    softmax(2, 40000, seed="softmax/triton_training"),
    rmsnorm(37, 200, seed="rmsnorm/triton_training"),
    rmsnorm(3, 77, change="transposed", seed="rmsnorm/triton_training"),
    rmsnorm(3, 8192, seed="rmsnorm/triton_training"),
    sum_rows(5, 1000),
    sum_rows(37, 200),
    sum_rows(3, 3000),
    sum_rows(3, 77, change="transposed"),
    sum_rows(2, 3, 20001),
    sum_rows(3, 70000, change="large", dtypes=("float16",)),
    sum_rows(3, 0, dtypes=("float32",)),
    sum_rows(3, 100, change="with_infinities"),
    cross_entropy(5, 1000),
    cross_entropy(3, 7),
    cross_entropy(37, 200, change="classes_and_infinities"),
    cross_entropy(300, 10, change="classes_and_huge"),
    cross_entropy(5, 1025),
    cross_entropy(3, 50257, dtypes=("float16",)),
    cross_entropy(3, 32000),
    cross_entropy(4, 4099, change="classes_and_infinities"),
    cross_entropy(4, 4099, change="classes_and_huge"),
    cross_entropy(3, 10000),
    cross_entropy(4, 8200, change="classes_and_infinities"),
    cross_entropy(3, 16384, change="classes_some_ignored"),
    cross_entropy(5, 300, change="classes_some_ignored"),
    rotary(2, 3, 50, 64),
    rotary(1, 5, 33, 48, change="heads_inside"),
    rotary(2, 4, 7, 10, dtypes=("float32",)),
    matmul(150, 90, 77, FULL_F32),
    matmul(200, 256, 128, FULL_F32, change="transposed"),
    matmul(70, 60, 200, FULL_F32, change="of_unlike_sizes"),
    matmul(1, 1, 1, FULL_F32),
    matmul(150, 90, 77),
    matmul(200, 264, 136),
    matmul(600, 520, 72, change="transposed"),
    matmul(3, 5, 0, FULL_F32),
    matmul(3, 5, 0),
    conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2),
    conv2d(2, 3, 39, 35, 96, 11, 11, 4, 2, change="weights"),
    conv2d(1, 5, 17, 19, 24, 3, 7, 3, 1),
    conv2d(1, 40, 7, 9, 150, 3, 3, 1, 1, change="weights"),
    conv2d(1, 4, 9, 9, 5, 1, 1, 1, 0, change="without_bias"),
    conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2, dtypes=HALVES),
    conv2d(1, 24, 16, 16, 130, 3, 3, 2, 1, change="weights"),
    conv2d(1, 16, 9, 9, 8, 1, 1, 2, 0),
    conv2d(1, 3, 16, 16, 17, 7, 7, 2, 3, dtypes=HALVES),
    conv2d(1, 8, 8, 8, 16, 3, 3, 1, 1, dtypes=HALVES),
    conv2d(1, 40, 7, 9, 150, 3, 3, 1, 1, change="weights", dtypes=HALVES),
    conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2, op=POOLED),
    conv2d(2, 3, 39, 35, 96, 11, 11, 4, 2, op=POOLED, change="weights"),
    conv2d(1, 5, 17, 19, 40, 3, 7, 3, 1, op=POOLED, change="without_bias"),
    swiglu(70, 64, 136),
    swiglu(33, 50, 77),
    swiglu(20, 64, 128, change="weights_and_large"),
    attention(1, 2, 256, 64),
    attention(2, 1, 150, 64),
    attention(1, 2, 128, 128, change="large"),
    attention(1, 1, 70, 40),
    attention(1, 2, 192, 128, change="heads_inside"),
)
FULL = (
    softmax(4096, 65536, dtypes=SINGLE),
    softmax(8192, 8192, dtypes=HALF),
    softmax(4096, 50257, dtypes=HALF),
    layernorm(16, 64, 256, 256, dims=3, dtypes=SINGLE),
    layernorm(8192, 4096, dtypes=HALF),
    rmsnorm(8192, 8192, dtypes=HALF),
    sum_rows(8192, 8192, dtypes=HALF),
    cross_entropy(8192, 50257, dtypes=HALF),
    rotary(2, 32, 2048, 128, dtypes=HALF),
    matmul(4096, 4096, 4096, FULL_F32),
    matmul(4096, 4096, 4096),
    conv2d(100, 3, 224, 224, 96, 11, 11, 4, 2, change="weights"),
    conv2d(64, 512, 7, 7, 512, 3, 3, 1, 1, change="weights", dtypes=HALVES),
    conv2d(64, 128, 56, 56, 128, 3, 3, 2, 1, change="weights", dtypes=HALVES),
    conv2d(100, 3, 224, 224, 96, 11, 11, 4, 2, op=POOLED, change="weights"),
    swiglu(2048, 4096, 11008),
    attention(1, 32, 2048, 128),
)
"""The problems that the seeds are made for."""


def interpretable(case: Case) -> tuple[str, ...]:
    """The dtypes that the interpreter can run: it multiplies the bits of bfloat16 matrices as integers."""
    products = case.seed.startswith(("matmul", "swiglu", "attention", "conv2d"))
    return tuple(dtype for dtype in case.dtypes if dtype != "bfloat16" or not products)


def main() -> None:
    """For the interpreter: a line of JSON for each small case, named as its test, and what is wrong."""
    import torch

    torch.set_num_threads(1)
    for case in SMALL:
        for dtype in interpretable(case):
            print(json.dumps([case.name, dtype, problem_of(case, dtype, "cpu")]))


def numpy_can_interpret() -> bool:
    """Triton 3.6's interpreter takes arrays of one element for integers; numpy 2.4 no longer does."""
    import numpy
    import triton

    old = [int(part) for part in triton.__version__.split(".")[:2]] < [3, 7]
    return not old or [int(part) for part in numpy.__version__.split(".")[:2]] < [2, 4]


@pytest.fixture(scope="module")
def interpreted() -> dict[tuple[str, str], str]:
    """What is wrong by case and dtype, from a process of its own: Triton chooses on its import."""
    pytest.importorskip("triton")
    if not numpy_can_interpret():
        pytest.skip("needs numpy < 2.4, or a newer Triton")
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.kernel_library.seeds.test_triton_seeds"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {(name, dtype): problem for name, dtype, problem in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_a_seed_is_right_in_the_interpreter(case: Case, interpreted: dict[tuple[str, str], str]) -> None:
    problems = {dtype: interpreted[case.name, dtype] for dtype in interpretable(case)}
    assert problems == dict.fromkeys(interpretable(case), "")


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*SMALL, *FULL], ids=lambda case: case.name)
def test_a_seed_is_right_on_a_gpu(case: Case) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    problems = {dtype: problem_of(case, dtype, "cuda") for dtype in case.dtypes}
    assert problems == dict.fromkeys(case.dtypes, "")


if __name__ == "__main__":
    main()
