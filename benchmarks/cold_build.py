"""Measures a cold `load_inline` build with PyTorch's headers and with ours.

    python benchmarks/cold_build.py [--architecture 9.0] [--only NAME ...]

Each source is built twice from scratch, each time in a new process. CPU seconds are the sum over all
compilers. `headers` shows which headers the library was finally built with; if ours were not sufficient, both
were tried. With a GPU, each library also runs, and its result is compared with PyTorch's. The exit status is
1 when a thin CUDA build takes more than 15 CPU seconds, fails where the full one does not, or computes
something else.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.runner import thin_headers

MAX_CPU_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """One extension with a function `f(x)`; `expected` computes the same in PyTorch on a 64 × 64 float32."""

    cpp: str = "torch::Tensor f(torch::Tensor x);"
    cuda: str = ""
    functions: tuple[str, ...] = ("f",)
    expected: Callable[[Any], Any]
    headers: str = "thin"
    """The headers that should be sufficient."""


SCALE = """
torch::Tensor f(torch::Tensor x) {
  auto y = torch::empty_like(x);
  int n = x.numel();
  scale<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""
SCALE_KERNEL = """
__global__ void scale(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
"""

SOURCES = {
    "plain": Source(
        cuda="#include <torch/extension.h>\n#include <cuda_runtime.h>\n" + SCALE_KERNEL + SCALE,
        expected=lambda x: 2 * x,
    ),
    "dispatch": Source(
        cuda="""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_fp16.h>
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a contiguous CUDA tensor")

template <typename scalar_t>
__global__ void square(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int64_t n) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    float value = static_cast<float>(x[i]);
    y[i] = static_cast<scalar_t>(value * value);
  }
}

torch::Tensor f(torch::Tensor x) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::zeros(x.sizes(), torch::TensorOptions().dtype(x.scalar_type()).device(x.device()));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "square", ([&] {
    square<scalar_t><<<128, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
""",
        expected=lambda x: x * x,
    ),
    "accessors": Source(
        cuda="""
__global__ void transpose(torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> x,
                          torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> y) {
  int i = blockIdx.x, j = threadIdx.x;
  if (i < x.size(0) && j < x.size(1)) y[j][i] = x[i][j];
}
torch::Tensor f(torch::Tensor x) {
  auto y = torch::empty({x.size(1), x.size(0)}, torch::dtype(torch::kFloat32).device(torch::kCUDA));
  transpose<<<x.size(0), x.size(1)>>>(x.packed_accessor32<float, 2, torch::RestrictPtrTraits>(),
                                     y.packed_accessor32<float, 2, torch::RestrictPtrTraits>());
  return y;
}
""",
        expected=lambda x: x.t(),
    ),
    "bound in .cu": Source(
        cpp="",
        cuda="#include <torch/extension.h>\n"
        + SCALE_KERNEL
        + SCALE
        + """
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f, "scale", py::arg("x")); }
""",
        functions=(),
        expected=lambda x: 2 * x,
    ),
    "operators": Source(
        cuda=SCALE_KERNEL
        + SCALE.replace(" f(", " scaled(")
        + """
torch::Tensor f(torch::Tensor x) {
  auto image = x.view({1, 1, x.size(0), x.size(1)});
  auto weight = torch::ones({1, 1, 3, 3}, x.options());
  auto y = at::conv2d(image, weight, {}, 1, 1).squeeze();
  return torch::relu(at::matmul(scaled(x), y)).sum(1, /*keepdim=*/true) + 1.0;
}
""",
        expected=lambda x: (
            _torch()
            .relu((2 * x) @ _torch().nn.functional.avg_pool2d(x[None, None], 3, 1, 1)[0, 0] * 9)
            .sum(1, keepdim=True)
            + 1.0
        ),
    ),
    "on the CPU": Source(
        cpp="""
#include <vector>
torch::Tensor f(torch::Tensor x) {
  auto source = x.cpu().contiguous();
  auto y = torch::empty_like(source);
  const float* from = source.data_ptr<float>();
  float* to = y.data_ptr<float>();
  at::parallel_for(0, source.numel(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = 2.0f * from[i];
  });
  return y.to(x.device());
}
""",
        expected=lambda x: 2 * x,
    ),
    "torch::nn": Source(
        cuda="torch::Tensor f(torch::Tensor x) { return torch::nn::functional::relu(x); }",
        cpp="torch::Tensor f(torch::Tensor x);",
        expected=lambda x: x.relu(),
        headers="full",
    ),
    "unqualified": Source(
        cuda="using namespace at;\ntorch::Tensor f(torch::Tensor x) { return softmax(x, 1); }",
        expected=lambda x: x.softmax(1),
        headers="full",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one build in seconds; its `error` if it failed; the `headers` that it was built with."""

    wall_s: float
    cpu_s: float
    headers: str
    error: str = ""


def build(name: str, thin: bool, architecture: str) -> Cost:
    """Builds one of SOURCES in this process, which should have built nothing before."""
    from torch.utils import cpp_extension

    source = SOURCES[name]
    if thin:
        thin_headers.install()
    error = ""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TORCH_CUDA_ARCH_LIST": architecture, "MAX_JOBS": "2", "HOME": folder}
        began = time.perf_counter()
        try:
            module = cpp_extension.load_inline(
                name="extension",
                cpp_sources=[source.cpp],
                cuda_sources=[source.cuda] if source.cuda else None,
                functions=list(source.functions) or None,
                build_directory=folder,
            )
        except Exception:  # the table shows it; continue with the next source
            error = traceback.format_exc()
        took_s = time.perf_counter() - began
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        ninja = Path(folder, "build.ninja")
        headers = "thin" if ninja.exists() and str(thin_headers.HEADERS) in ninja.read_text() else "full"
        if not error:
            error = compare(module, source)
    return Cost(wall_s=took_s, cpu_s=usage.ru_utime + usage.ru_stime, headers=headers, error=error)


def compare(module: Any, source: Source) -> str:
    """What is wrong with the result; "" for nothing, or without a GPU."""
    torch = _torch()
    if source.cuda and not torch.cuda.is_available():
        return ""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    x = torch.randn(64, 64, device="cuda" if torch.cuda.is_available() else "cpu")
    result, expected = module.f(x), source.expected(x)
    if torch.allclose(result, expected, rtol=1e-3, atol=1e-3):
        return ""
    return f"the result is off by {(result - expected).abs().max().item()}"


def _torch() -> Any:
    import torch

    return torch


def _child(pipe: Connection, name: str, thin: bool, architecture: str) -> None:
    pipe.send(build(name, thin, architecture))


def in_a_process(name: str, thin: bool, architecture: str) -> Cost:
    """Runs `build` in a new process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, name, thin, architecture))
    process.start()
    theirs.close()
    try:
        cost: Cost = ours.recv()
    except EOFError:
        cost = Cost(wall_s=0.0, cpu_s=0.0, headers="", error="the process died")
    process.join()
    return cost


def main() -> int:
    """Runs the benchmark; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="9.0")
    parser.add_argument("--only", nargs="*", choices=list(SOURCES), default=list(SOURCES))
    args = parser.parse_args()
    _torch()  # import it once, for all processes
    print(
        f"{'source':14} {'full: wall s':>12} {'CPU s':>7} {'thin: wall s':>14} {'CPU s':>7}  headers",
        flush=True,
    )
    missed = False
    for name in args.only:
        full, thin = (in_a_process(name, thin, args.architecture) for thin in (False, True))
        wanted = SOURCES[name].headers
        late = thin.headers == "thin" and thin.cpu_s > MAX_CPU_S
        bad = late or thin.headers != wanted or (bool(thin.error) and not full.error)
        missed = missed or bad
        print(
            f"{name:14} {full.wall_s:12.1f} {full.cpu_s:7.1f} {thin.wall_s:14.1f} {thin.cpu_s:7.1f}"
            f"  {thin.headers}{'  MISSED' if bad else ''}",
            flush=True,
        )
        for label, cost in (("full", full), ("thin", thin)):
            if cost.error:
                print(f"--- {label}: {cost.error[-3000:]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
