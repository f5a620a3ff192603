"""Kernels from files and folders."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from kernel_library import override
from kernel_library.overrides.kernels import files_of
from kernel_library.overrides.override import Override
from tests.kernel_library.overrides.test_override import calls


def write(folder: Path, op: str, version: str, body: str, function: str | None = None) -> Path:
    """A file in BackendBench's layout."""
    path = folder / op / f"{op}_implementation{version}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"def {function or op + '_kernel_impl'}(x, *args, **kwargs):\n    return {body}\n")
    return path


def test_the_last_version_of_a_folder_is_taken(tmp_path: Path) -> None:
    for version in ("_v1", "_v2", "_v10", "_v9", ""):
        write(tmp_path, "relu__default", version, f"x * {version[2:] or 0}")
    (tmp_path / "gelu__default").mkdir()
    with override(tmp_path) as on:
        assert on.operators == ("aten.relu.default",)
        assert torch.relu(torch.ones(1)) == 10
        assert calls(on, kernel="relu__default_implementation_v10") == 1


def test_an_in_place_folder_covers_all_forms(tmp_path: Path) -> None:
    write(tmp_path, "relu___default", "", "x.mul_(3)")
    with override(tmp_path):
        x = torch.ones(1)
        assert torch.relu(x) == 3
        assert x == 1
        assert torch.relu_(x) is x
        assert x == 3
    write(tmp_path, "relu__default", "", "x * 5")
    with override(tmp_path):
        assert torch.relu_(torch.ones(1)) == 5


def test_what_a_folder_has_that_is_no_operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "sofmax__default", "", "x")
    write(tmp_path, "addmm__out", "", "x")
    with caplog.at_level(logging.WARNING):
        assert [*files_of(tmp_path)] == []
    assert len(caplog.records) == 2
    assert "did you mean aten.softmax?" in caplog.text
    assert "aten.addmm.out is a form of aten.addmm.default; use that name" in caplog.text
    with pytest.raises(ValueError, match="has no kernel"):
        override(tmp_path)
    with pytest.raises(OSError, match="nowhere"):
        override(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "source",
    [
        "def relu__default_kernel_impl(x): return x * 3",
        "def relu(x): return x * 3",
        "def kernel(x): return x * 3",
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x * 3",
    ],
)
def test_the_names_of_a_function(source: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    with override({"aten.relu": path}):
        assert torch.relu(torch.ones(1)) == 3


def test_a_file_without_a_kernel(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def other(x): return x")
    with pytest.raises(ValueError, match="no function relu__default_kernel_impl, relu, kernel and no class"):
        override({"aten.relu": path})
    with pytest.raises(ValueError, match="is a form of aten"):
        override({"aten.relu.out": path})


@pytest.mark.slow
def test_functions_with_equal_sources_are_distinct() -> None:
    def times(factor: int) -> Override:
        return override({"aten.relu": lambda x: x * factor})

    compiled = torch.compile(torch.relu, backend="aot_eager")
    with torch.no_grad():
        for factor in (3, 4):
            with times(factor):
                assert compiled(torch.ones(1)) == factor
