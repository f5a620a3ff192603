"""Which headers an extension is built with and when it is rebuilt, tested with a fake build function."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluators.runner import thin_headers


class FakeBuild:
    """Replaces PyTorch's function; `fails` decides from the include paths whether a build fails."""

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
        lambda folder: setattr(torch, "__version__", "1.0"),
        lambda folder: setattr(sys, "version", "2.7"),
    ],
    ids=["source", "no library", "no marker", "architecture", "PyTorch", "Python"],
)
def test_changes_that_require_a_new_build(
    folder: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    monkeypatch.setattr(torch, "__version__", torch.__version__)
    monkeypatch.setattr(sys, "version", sys.version)
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


def test_the_header_includes_what_each_kind_of_source_names(tmp_path: Path) -> None:
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
