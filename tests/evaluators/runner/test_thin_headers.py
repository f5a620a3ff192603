"""Extensions built with thin headers by a real compiler: the same results, and no second build."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluators.build.builder import Build, build, close_thread_fork_server, runner_spec, scratch_folder
from evaluators.isolation import confinement
from evaluators.records.problem import Kernel, Problem
from evaluators.runner import thin_headers
from evaluators.runner.fork_server import ForkServer
from evaluators.runner.messages import Import

torch = pytest.importorskip("torch")

PROBLEM = Problem(name="file/double", source="class Model: ...")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


# Typical code: checked arguments, options, a parallel loop, an operator, a method, a tuple.
EXTENSION = '''
import torch
from torch.utils.cpp_extension import load_inline

module = load_inline(
    name="doubled",
    cpp_sources="""
#include <torch/extension.h>
#include <vector>
#define CHECK(x) TORCH_CHECK(x.is_contiguous() && x.scalar_type() == torch::kFloat32, #x " must be plain")

std::tuple<torch::Tensor, at::Tensor> doubled(torch::Tensor x, double factor, c10::optional<int64_t> dim) {
  CHECK(x);
  at::NoGradGuard no_grad;
  auto options = torch::TensorOptions().dtype(torch::kFloat32).device(x.device());
  auto y = torch::zeros({x.size(0), x.size(1)}, options);
  auto from = x.accessor<float, 2>();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "doubled", ([&] {
    auto* to = y.data_ptr<scalar_t>();
    at::parallel_for(0, x.size(0), 1, [&](int64_t begin, int64_t end) {
      for (const auto row : c10::irange(begin, end))
        for (int64_t i = 0; i < x.size(1); ++i) to[row * x.size(1) + i] = factor * from[row][i];
    });
  }));
  return {y, torch::softmax(at::matmul(y, x.t()), dim.value_or(1)) + torch::ones_like(x)};
}
""",
    functions=["doubled"],
)
x = torch.arange(16.0).reshape(4, 4)
y, z = module.doubled(x, 2.0, None)
assert torch.equal(y, 2 * x)
assert torch.allclose(z, torch.softmax(2 * x @ x.t(), 1) + 1)
try:
    module.doubled(x.t(), 2.0, 0)
except RuntimeError as error:
    assert "must be plain" in str(error)
else:
    raise AssertionError("no error")

class ModelNew: ...
'''


@pytest.fixture(scope="module", autouse=True)
def _one_fork_server() -> Iterator[None]:
    yield
    close_thread_fork_server()


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Build:
    kernel = Kernel(source=EXTENSION, language="cpp")
    return build(PROBLEM, kernel, root=tmp_path_factory.mktemp("root"), architecture="", timeout_s=300)


def import_elsewhere(source: str, archive: bytes, root: Path, path: str) -> dict[str, Any]:
    """A runner's answer after importing the kernel under another root, with only the programs in `path`."""
    fork_server = ForkServer.start(confinement.clean_environment() | {"PATH": path})
    try:
        with scratch_folder(PROBLEM, Kernel(source=source, language="cpp"), root, archive) as scratch:
            child = fork_server.fork(runner_spec(scratch, role="candidate", cpu_s=60, environment={}))
            child.channel.receive(30)
            child.channel.send(Import(problem=PROBLEM, architecture="").message())
            answer = child.channel.receive(60)
            fork_server.end(child)
            return answer
    finally:
        fork_server.close()


def ninja_file(archive: bytes, name: str) -> str:
    """The instructions with which an extension was last built."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        file = tar.extractfile(f"torch_extensions/{name}/build.ninja")
        assert file is not None
        return file.read().decode()


def test_the_thin_headers_are_where_builds_look_for_them() -> None:
    """A compiler silently accepts an include path that does not exist."""
    for name in ("torch/extension.h", "torch/all.h", "ATen/ATen.h"):
        assert (thin_headers.HEADERS / name).is_file()


@pytest.mark.slow
@needs_compiler
def test_an_extension_is_built_with_thin_headers(extension: Build) -> None:
    assert extension.status is None, extension.log
    assert str(thin_headers.HEADERS) in ninja_file(extension.archive, "doubled"), (
        "the thin headers did not do"
    )
    with tarfile.open(fileobj=io.BytesIO(extension.archive)) as tar:
        names = tar.getnames()
    assert "torch_extensions/doubled/doubled.so" in names
    assert not [name for name in names if name.endswith(".o")]


@pytest.mark.slow
@needs_compiler
def test_a_runner_elsewhere_needs_no_compiler(extension: Build, tmp_path: Path) -> None:
    assert import_elsewhere(EXTENSION, extension.archive, tmp_path, str(tmp_path)) == {"op": "imported"}


@pytest.mark.slow
@needs_compiler
def test_another_source_is_not_taken_for_the_built_one(extension: Build, tmp_path: Path) -> None:
    other = EXTENSION.replace("factor * from", "from")
    answer = import_elsewhere(other, extension.archive, tmp_path, str(tmp_path))
    assert answer["op"] == "failed"
    assert "ninja" in answer["error"].lower()


def test_a_second_installation_changes_nothing_and_a_block_leaves_nothing() -> None:
    from torch.utils import cpp_extension

    name = "_write_ninja_file_and_build_library"
    before = getattr(cpp_extension, name)
    with thin_headers.installed():
        installed = getattr(cpp_extension, name)
        assert installed is not before
        thin_headers.install()
        assert getattr(cpp_extension, name) is installed
    assert getattr(cpp_extension, name) is before


CUDA_EXTENSION = '''
from torch.utils.cpp_extension import load_inline

module = load_inline(
    name="halved",
    cpp_sources="torch::Tensor halved(torch::Tensor x);",
    cuda_sources="""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

template <typename scalar_t>
__global__ void halve(torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> x, scalar_t* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < x.size(0)) y[i] = x[i] / static_cast<scalar_t>(2);
}

torch::Tensor halved(torch::Tensor x) {
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "halved", ([&] {
    halve<scalar_t><<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.packed_accessor32<scalar_t, 1, torch::RestrictPtrTraits>(), y.data_ptr<scalar_t>());
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
""",
    functions=["halved"],
)

class ModelNew: ...
'''


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_cuda_extension(tmp_path: Path) -> None:
    kernel = Kernel(source=CUDA_EXTENSION, language="cuda")
    major, minor = torch.cuda.get_device_capability()
    done = build(PROBLEM, kernel, root=tmp_path, architecture=f"{major}.{minor}", timeout_s=300)
    assert done.status is None, done.log
    assert str(thin_headers.HEADERS) in ninja_file(done.archive, "halved"), "the thin headers did not do"


@needs_compiler
@pytest.mark.slow
def test_a_source_that_needs_the_full_headers(tmp_path: Path) -> None:
    source = EXTENSION.replace("#include <vector>", "using namespace at;").replace(
        "torch::softmax", "softmax"
    )
    kernel = Kernel(source=source, language="cpp")
    done = build(PROBLEM, kernel, root=tmp_path, architecture="", timeout_s=300)
    assert done.status is None, done.log
    assert import_elsewhere(source, done.archive, tmp_path, str(tmp_path)) == {"op": "imported"}
