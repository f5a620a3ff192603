"""Makes PyTorch's `load_inline` and `load` fast in the process that imports a candidate.

Most of a build's time goes into parsing PyTorch's headers, three times for a CUDA source. Here the source is
first compiled with thin headers (`headers/`) and the headers of the operators that it names. If that fails
for any reason, it is built with the full headers, whose errors the author sees. A library left by an earlier
build is loaded without running ninja if it was made from exactly these sources and flags.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from evaluators import PACKAGE

HEADERS = PACKAGE / "runner" / "headers"
USED_HEADER = "ideatree_used.h"

WORDS = {
    r"\bpy::|pybind11|PYBIND11|wrap_pybind": ("torch/csrc/utils/pybind.h", "torch/csrc/Exceptions.h"),
    r"\bTORCH_LIBRARY|torch::Library": ("torch/library.h",),
    r"\bparallel_for|\bparallel_reduce|_num_threads\b": ("ATen/Parallel.h",),
    r"\bindexing::": ("ATen/TensorIndexing.h",),
    r"::cat\b|\bITensorListRef\b": ("ATen/core/IListRef.h",),
}
"""PyTorch headers that a source needs if it contains the pattern."""

NEEDS_ALL = re.compile(
    r"requires_grad|\bautograd\b|torch::(?:nn|jit|optim|data|tensor|load|save)\b|globalContext"
)
"""Sources that match are not tried with thin headers, with which they would fail or mean something else
(`torch::` factories support gradients, `at::` ones do not)."""


def install() -> None:
    """From now on this process builds extensions as described above; a second call changes nothing. Imports
    `torch.utils.cpp_extension`, which looks for a GPU: not for a process that will fork."""
    from torch.utils import cpp_extension

    build = cpp_extension._write_ninja_file_and_build_library
    if getattr(build, "func", None) is not _build_library:
        cpp_extension._write_ninja_file_and_build_library = functools.partial(_build_library, build)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """`install` for the duration of the block, in a process that runs other code too."""
    from torch.utils import cpp_extension

    before = cpp_extension._write_ninja_file_and_build_library
    install()
    try:
        yield
    finally:
        cpp_extension._write_ninja_file_and_build_library = before


def used_header(sources: Iterable[tuple[str, str]], include_paths: Iterable[str]) -> str:
    """The text of a header that includes the PyTorch headers that the sources need. `sources` are suffix and
    text of each; `include_paths` is where PyTorch's headers are."""
    cuda, host = set[str](), set[str]()
    for suffix, text in sources:
        needed = cuda if suffix == ".cu" else host
        for pattern, headers in WORDS.items():
            if re.search(pattern, text):
                needed.update(headers)
        for name in re.findall(r"\b(?:at|torch)::(\w+)", text):
            header = f"ATen/ops/{name}.h"
            if any(Path(path, header).is_file() for path in include_paths):
                needed.add(header)
    lines = ["#pragma once", "#ifdef __CUDACC__", *_includes(cuda), "#else", *_includes(host), "#endif", ""]
    return "\n".join(lines)


def _includes(headers: set[str]) -> list[str]:
    return [f"#include <{header}>" for header in sorted(headers)]


def _build_library(build: Callable[..., None], *positional: Any, **named: Any) -> None:
    """Replaces `build`, PyTorch's function that builds a library. Raises RuntimeError as that does."""
    arguments = inspect.signature(build).bind(*positional, **named).arguments
    folder = Path(arguments["build_directory"])
    sources = [(Path(path).suffix, Path(path).read_text()) for path in arguments["sources"]]
    library, marker = (folder / f"{arguments['name']}{suffix}" for suffix in (".so", ".made-of"))
    made_of = _digest(arguments, sources, folder)
    if library.exists() and marker.exists() and marker.read_text() == made_of:
        return
    if not _build_thin(build, arguments, sources, folder):
        build(**copy.deepcopy(arguments))  # it appends to the author's lists
    marker.write_text(made_of)
    for each in folder.glob("*.o"):
        each.unlink()  # larger than the library, and no longer needed


def _build_thin(
    build: Callable[..., None], arguments: dict[str, Any], sources: list[tuple[str, str]], folder: Path
) -> bool:
    """Whether the library could be built with thin headers."""
    from torch.utils.cpp_extension import include_paths

    if any(NEEDS_ALL.search(text) for _, text in sources):
        return False
    (folder / USED_HEADER).write_text(used_header(sources, include_paths()))
    paths = [str(HEADERS), str(folder), *arguments["extra_include_paths"]]
    try:
        build(**copy.deepcopy(arguments) | {"extra_include_paths": paths, "verbose": False})
    except RuntimeError:
        return False
    return True


def _digest(arguments: dict[str, Any], sources: list[tuple[str, str]], folder: Path) -> str:
    """Identifies what a library is made from, and the PyTorch and Python that it is for; independent of the
    scratch folder's path."""
    import torch

    flags = {key: value for key, value in arguments.items() if key not in ("sources", "verbose")}
    made_for = [torch.__version__, sys.version, os.environ.get("TORCH_CUDA_ARCH_LIST")]
    text = json.dumps([flags, made_for, sources], sort_keys=True, default=str)
    for place in (str(folder), os.environ.get("HOME", "")):
        text = text.replace(place, "") if place else text
    return hashlib.sha256(text.encode()).hexdigest()
