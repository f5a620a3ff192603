"""Extensions built with thin headers: the same results, the full headers' errors, no second build."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluators.build.builder import Build, build, close_thread_fork_server, runner_spec, scratch_folder
from evaluators.isolation import confinement
from evaluators.problem import Kernel, Problem
from evaluators.runner import thin_headers
from evaluators.runner.fork_server import ForkServer
from evaluators.runner.messages import Import

torch = pytest.importorskip("torch")

PROBLEM = Problem(name="file/double", source="class Model: ...")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# What people write: the arguments checked, options, a loop in parallel, an operator, a method, a tuple.
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
    """What a runner answers that imports the kernel under another root, with programs only in `path`."""
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
    """The instructions by which an extension was last built."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        file = tar.extractfile(f"torch_extensions/{name}/build.ninja")
        assert file is not None
        return file.read().decode()


def test_the_thin_headers_are_where_builds_look_for_them() -> None:
    """A compiler takes an include path that is not there without a word."""
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


def test_a_second_installation_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import cpp_extension

    name = "_write_ninja_file_and_build_library"
    monkeypatch.setattr(cpp_extension, name, getattr(cpp_extension, name))
    thin_headers.install()
    installed = getattr(cpp_extension, name)
    thin_headers.install()
    assert getattr(cpp_extension, name) is installed


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
def test_a_source_for_which_the_thin_headers_do_not_do(tmp_path: Path) -> None:
    source = EXTENSION.replace("#include <vector>", "using namespace at;").replace(
        "torch::softmax", "softmax"
    )
    kernel = Kernel(source=source, language="cpp")
    done = build(PROBLEM, kernel, root=tmp_path, architecture="", timeout_s=300)
    assert done.status is None, done.log
    assert import_elsewhere(source, done.archive, tmp_path, str(tmp_path)) == {"op": "imported"}


class FakeBuild:
    """In the place of PyTorch's function; `fails` says of the include paths whether a build fails."""

    def __init__(self, fails: Callable[[list[str]], bool] = lambda paths: False) -> None:
        self.paths: list[list[str]] = []
        self._fails = fails

    def __call__(
        self,
        name: str,
        sources: list[str],
        extra_ldflags: list[str],
        extra_include_paths: list[str],
        build_directory: str,
        verbose: bool,
    ) -> None:
        self.paths.append(extra_include_paths)
        extra_ldflags.append("-lmore")  # as PyTorch's does
        if self._fails(extra_include_paths):
            raise RuntimeError(f"error with {extra_include_paths}")
        (Path(build_directory) / f"{name}.so").write_text("library")


def is_thin(paths: list[str]) -> bool:
    return str(thin_headers.HEADERS) in paths


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return make_folder(tmp_path / "home")


def make_folder(home: Path) -> Path:
    folder = home / "torch_extensions"
    folder.mkdir(parents=True)
    (folder / "main.cpp").write_text("int f();")
    return folder


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "sources": [str(folder / "main.cpp")],
        "extra_ldflags": ["-lm"],
        "extra_include_paths": [str(folder.parent / "mine")],
        "build_directory": str(folder),
        "verbose": True,
    } | changes


def test_thin_headers_come_first(folder: Path) -> None:
    fake = FakeBuild()
    thin_headers._build_library(fake, **arguments(folder))
    assert fake.paths == [[str(thin_headers.HEADERS), str(folder), str(folder.parent / "mine")]]
    assert (folder / thin_headers.USED_HEADER).exists()


def test_full_headers_when_thin_ones_fail(folder: Path) -> None:
    fake = FakeBuild(is_thin)
    thin_headers._build_library(fake, **arguments(folder))
    assert [is_thin(paths) for paths in fake.paths] == [True, False]


def test_the_error_is_that_of_the_full_headers(folder: Path) -> None:
    fake = FakeBuild(lambda paths: True)
    with pytest.raises(RuntimeError) as error:
        thin_headers._build_library(fake, **arguments(folder))
    assert str(thin_headers.HEADERS) not in str(error.value)
    assert len(fake.paths) == 2
    with pytest.raises(RuntimeError):
        thin_headers._build_library(fake, **arguments(folder))


@pytest.mark.parametrize(
    "text",
    [
        "x.set_requires_grad(true)",
        "torch::nn::functional::relu(x)",
        "namespace F = torch::nn::functional;",
        "class F : public torch::autograd::Function<F> {}",
        "torch::tensor({1.0, 2.0})",
        "at::globalContext().allowTF32CuBLAS()",
    ],
)
def test_sources_that_thin_headers_would_change_or_fail(folder: Path, text: str) -> None:
    (folder / "main.cpp").write_text(text)
    fake = FakeBuild()
    thin_headers._build_library(fake, **arguments(folder))
    assert [is_thin(paths) for paths in fake.paths] == [False]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "main.cpp").write_text("int g();"),
        lambda folder: (folder / "x.so").unlink(),
        lambda folder: (folder / "x.made-of").unlink(),
        lambda folder: os.environ.update(TORCH_CUDA_ARCH_LIST="1.0"),
    ],
    ids=["source", "no library", "no marker", "architecture"],
)
def test_what_is_built_again(
    folder: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    fake = FakeBuild()
    given = arguments(folder)
    for _ in range(2):  # with the same lists: they are not changed
        thin_headers._build_library(fake, **given)
    assert len(fake.paths) == 1
    thin_headers._build_library(fake, **arguments(folder, verbose=False))
    assert len(fake.paths) == 1
    change(folder)
    thin_headers._build_library(fake, **arguments(folder))
    assert len(fake.paths) == 2
    thin_headers._build_library(fake, **arguments(folder, extra_ldflags=["-lother"]))
    assert len(fake.paths) == 3


def test_a_library_is_up_to_date_wherever_its_folder_lies(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeBuild()
    thin_headers._build_library(fake, **arguments(folder))
    other = make_folder(tmp_path / "other")
    for name in ("x.so", "x.made-of"):
        shutil.copy(folder / name, other / name)
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    thin_headers._build_library(fake, **arguments(other))
    assert len(fake.paths) == 1


def test_the_header_has_what_each_kind_of_source_names(tmp_path: Path) -> None:
    (tmp_path / "ATen" / "ops").mkdir(parents=True)
    for name in ("conv2d", "relu", "cat", "add"):
        (tmp_path / "ATen" / "ops" / f"{name}.h").write_text("")
    sources = [
        (".cpp", "torch::relu(x); torch::nothing(x); at::parallel_for(0, 1, 1, f); PYBIND11_MODULE(a, m) {}"),
        (".cu", "at::conv2d(x, w); x.add(1); at::cat({x});"),
    ]
    text = thin_headers.used_header(sources, [str(tmp_path / "absent"), str(tmp_path)])
    cuda, _, host = text.partition("#else")
    assert [line for line in cuda.splitlines() if line.startswith("#include")] == [
        "#include <ATen/core/IListRef.h>",
        "#include <ATen/ops/cat.h>",
        "#include <ATen/ops/conv2d.h>",
    ]
    assert [line for line in host.splitlines() if line.startswith("#include")] == [
        "#include <ATen/Parallel.h>",
        "#include <ATen/ops/relu.h>",
        "#include <torch/csrc/Exceptions.h>",
        "#include <torch/csrc/utils/pybind.h>",
    ]
