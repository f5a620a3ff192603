"""What this machine lacks to build a kernel or to run a reference. Such a failure says nothing about either.

A failure counts as the machine's only if the tool is wanted (the log or the source shows it) and missing.
This process looks for it, so that a kernel can neither claim nor cause it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from evaluators.base.languages import LANGUAGES
from evaluators.system.installed_languages import why_not_here

FREE_BYTES = 64 * 2**20
"""A disk with less free space counts as full."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Something that builds need: `wanted` finds in a source or in a log that it is needed, `is_there` looks
    for it on this machine."""

    name: str
    wanted: re.Pattern[str]
    is_there: Callable[[], bool]
    remedy: str
    on_gpu_only: bool = False


def missing_tool(source: str, log: str, *, device: str, root: Path, architecture: str = "") -> str:
    """What this machine lacks for a kernel or reference that has failed with this log, and what to do, in one
    line; "" if it lacks nothing. `root`: the folder of the builds. `architecture`: the GPU's compute
    capability, such as "9.0"."""
    for language in LANGUAGES.values() if device == "cuda" else ():
        if language.imports.search(source) or _misses(log, language.modules):
            why = why_not_here(language, architecture, tries_import="ImportError" in log)
            if why:
                return why
    for tool in TOOLS:
        needed = tool.wanted.search(source) or tool.wanted.search(log)
        if needed and (device == "cuda" or not tool.on_gpu_only) and not tool.is_there():
            return f"this machine has no {tool.name}; {tool.remedy}"
    if "No space left on device" in log and (full := _full_disk(root)):
        return f"the disk of {full} is full; free some space there"
    return ""


def missing_module(log: str) -> str:
    """The module that a reference imports and this machine lacks, and what to do; "" if there is none."""
    for name in re.findall(r"^ModuleNotFoundError: No module named '([\w.]+)'", log, re.MULTILINE):
        if not _has_module(name.partition(".")[0]):
            return f"this machine has no Python module {name.partition('.')[0]}; install its package"
    return ""


def missing_file(log: str) -> str:
    """The file that a reference opens and its processes do not see, and what to do; "" if there is none."""
    found = re.search(r"^FileNotFoundError: \[Errno 2\] No such file or directory: '(.*)'", log, re.MULTILINE)
    if found is None:
        return ""
    return f"no file {found[1]} can be opened; a reference reads no files: make its data in its source"


def cuda_compiler() -> str:
    """The path of nvcc, as PyTorch looks for it; "" if there is none."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return next(filter(None, map(shutil.which, (f"{home or '/usr/local/cuda'}/bin/nvcc", "nvcc"))), "")


def cpp_compiler() -> str:
    """The command that PyTorch's extensions are compiled with."""
    return os.environ.get("CXX", "c++")


def _misses(log: str, modules: Iterable[str]) -> bool:
    """Whether a log says that there is no such module."""
    return any(f"No module named '{each}'" in log for each in modules)


def _has_program(*names: str) -> bool:
    return any(shutil.which(name) for name in names if name)


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _has_header(name: str) -> bool:
    return any(Path(sysconfig.get_path(each), name).is_file() for each in ("include", "platinclude"))


def _full_disk(root: Path) -> str:
    places = [each for each in (root, *root.parents) if each.exists()][:1]
    return next((str(each) for each in places if shutil.disk_usage(each).free < FREE_BYTES), "")


EXTENSION = r"^[^#\n]*\bcpp_extension\b"
"""A line of code that uses PyTorch's extensions."""
COMPILERS = "apt install g++ (or set CXX to another compiler)"
TOOLS = (
    Tool(
        name="ninja",
        wanted=re.compile(rf"{EXTENSION}|Ninja is required to load", re.MULTILINE),
        is_there=lambda: _has_program("ninja"),
        remedy="pip install ninja, and put it on the PATH",
    ),
    Tool(
        name="C++ compiler",
        wanted=re.compile(EXTENSION, re.MULTILINE),
        is_there=lambda: _has_program(cpp_compiler()),
        remedy=COMPILERS,
    ),
    Tool(
        name="C++ compiler for torch.compile",
        wanted=re.compile(r"InvalidCxxCompiler|No working C\+\+ compiler"),
        is_there=lambda: _has_program(os.environ.get("CXX", "g++")),
        remedy=COMPILERS,
    ),
    Tool(
        name="complete C++ compiler",
        wanted=re.compile(r"cannot execute .?cc1plus|cannot find .?ld\b|installation problem, cannot exec"),
        is_there=lambda: _has_program("ld") and _has_program("g++", "clang++"),
        remedy="apt install g++ binutils",
    ),
    Tool(
        name="nvcc",
        wanted=re.compile(
            r"cuda_sources|CUDA_HOME environment variable is not set|nvcc: not found|"
            r"Failed to automatically detect CUDA installation"  # TileLang's words
        ),
        is_there=lambda: bool(cuda_compiler()),
        remedy="install the CUDA toolkit, and set CUDA_HOME to its folder",
        on_gpu_only=True,
    ),
    Tool(
        name="C compiler for Triton",
        wanted=re.compile(r"Failed to find C compiler"),
        is_there=lambda: _has_program(os.environ.get("CC", ""), "gcc", "clang"),
        remedy="apt install gcc (or set CC to another compiler)",
        on_gpu_only=True,
    ),
    Tool(
        name="header Python.h",
        wanted=re.compile(r"Python\.h: No such file"),
        is_there=lambda: _has_header("Python.h"),
        remedy="apt install python3-dev, for the version of Python in use",
    ),
)
