"""Which of a GPU's kernels belong to a library, determined from the libraries' own files.

A file with CUDA code registers each kernel under its mangled name (`__cudaRegisterFunction`), a string in the
file's read-only data, and CUPTI reports the same names. Triton kernels that torch ships are functions in its
Python files. Only code that a library generates at run time is in no file: see GENERATED.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import mmap
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from evaluators.system import elf

DEVICE_CODE = ".nv_fatbin"
"""The section that marks a file with CUDA code."""
NAMES_SECTION = ".rodata"
MANGLED = re.compile(rb"_Z\w+(?=\0)")
COMPONENT = re.compile(r"St|L?(\d+)")
"""Part of a mangled nested name: `std`, or the length of an identifier, preceded by L if it is local to its
file."""
JIT = re.compile(r"@(\w+\.)*(?<!torch\.)jit\b")
"""A decorator of Triton or Gluon."""
GENERATED = re.compile(
    r"^triton_(poi|red|per|tem|spl|for|mm|convolution|helion)_"  # torch.compile
    r"|^fused_"  # TorchScript
    r"|_vectorized\d+_kernel$|^reduction_\w+_kernel$"  # torch's special functions, compiled at the first call
)
"""Names that torch gives to kernels that it generates and compiles at run time."""
HEADERS = re.compile(r"^(cub|thrust)::")
"""The CUDA toolkit's algorithms: templates from which the candidate's own compiler makes kernels. torch's own
templates are recognised by the instances in its files, where these are in other namespaces."""


class VendorKernels:
    """The kernels of some files, recognised by their names."""

    def __init__(self, marks: frozenset[str]) -> None:
        """`marks`: `_mark` of every name."""
        self._marks = marks

    @classmethod
    def of(cls, files: Iterable[Path], sources: Path, folder: Path) -> VendorKernels:
        """The kernels of shared objects, and of the Python files below `sources`. Reading them takes seconds
        the first time; then the names are cached in `folder` for these versions of the files. If the folder
        cannot be written, nothing is cached."""
        files = sorted(files)
        versions = [_version(each) for each in (*files, sources, sources / "version.py") if each.exists()]
        key = hashlib.sha256(repr(versions).encode()).hexdigest()[:16]
        kept = folder / f"library_kernels-{key}.txt"
        with contextlib.suppress(OSError):
            return cls(frozenset(kept.read_text().split()))
        names = {name for each in files for name in registered(each)}
        functions = {function for name in names if "::" in (function := function_of(name))}
        marks = frozenset(map(_mark, names | functions | set(triton_kernels(sources))))
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            written = folder / f".library_kernels-{os.getpid()}.txt"
            written.write_text("\n".join(sorted(marks)))
            for old in folder.glob("library_kernels-*.txt"):
                old.unlink(missing_ok=True)
            written.rename(kept)
        return cls(marks)

    def holds(self, kernel: str, source: str) -> bool:
        """Whether a kernel with this name belongs to a library, for a candidate with this source.

        A candidate's function may have the same name as a library's, which its source then defines. But the
        same arguments, namespace and file do not occur by accident.
        """
        name = _from_the_file(kernel)
        function = function_of(name)
        if "::" in function and self._has(name):
            return True
        if defines(source, function.rpartition("::")[2]):
            return False
        generated = GENERATED.search(name) or HEADERS.search(function)
        return generated is not None or self._has(name) or self._has(function)

    def _has(self, name: str) -> bool:
        return _mark(name) in self._marks


@cache
def installed(folder: Path) -> VendorKernels:
    """The kernels of torch, of everything with CUDA code installed next to it, and of the CUDA toolkit.
    `folder` caches their names."""
    import torch

    package = Path(torch.__file__).parent
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"
    found = {each.resolve() for place in (package.parent, toolkit) for each in place.rglob("*.so*")}
    return VendorKernels.of([each for each in found if each.is_file()], package, folder)


def registered(path: Path) -> set[str]:
    """The mangled names in the read-only data of a file with CUDA code, which include its kernels'; empty for
    other files. Raises OSError."""
    sections = elf.sections(path)
    if not any(each.name == DEVICE_CODE for each in sections):
        return set()
    found: set[str] = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for each in sections:
            if each.name == NAMES_SECTION:
                matches = MANGLED.finditer(data, each.offset, each.offset + each.size)
                found.update(match[0].decode("ascii", "replace") for match in matches)
    return found


def triton_kernels(folder: Path) -> Iterator[str]:
    """The names of the functions below a folder that `triton.jit` or similar compiles."""
    for path in folder.rglob("*.py"):
        text = path.read_text(errors="replace")
        if "triton" in text and JIT.search(text):
            with contextlib.suppress(SyntaxError):
                for node in ast.walk(ast.parse(text)):
                    if isinstance(node, ast.FunctionDef) and any(
                        JIT.search(f"@{ast.unparse(each)}") for each in node.decorator_list
                    ):
                        yield node.name


def function_of(name: str) -> str:
    """The function of a mangled name, with its namespaces, which is the same for all instances of a template.
    Any other name is returned unchanged.

    `_ZN2at6native4copyIfEEvPT_` → `at::native::copy`, by the rules of the Itanium C++ ABI (5.1).
    """
    if not name.startswith("_Z"):
        return name
    nested = name.startswith("_ZN")
    parts: list[str] = []
    at = 3 if nested else 2
    while (match := COMPONENT.match(name, at)) and (nested or not parts):
        at = match.end() + int(match[1] or 0)
        part = name[match.end() : at] if match[1] else "std"
        # The name of an anonymous namespace contains the file's.
        parts.append("(anonymous)" if part.startswith(("_GLOBAL__N_", "_INTERNAL_")) else part)
    return "::".join(parts) or name


def defines(source: str, function: str) -> bool:
    """Whether a candidate's source defines a Python function or a CUDA kernel with this name."""
    name = re.escape(function)
    return re.search(rf"\bdef\s+{name}\s*\(|__global__[^;{{}}]*?\b{name}\s*\(", source) is not None


def _from_the_file(kernel: str) -> str:
    """A kernel's name as in its file: without the module that Triton prefixes to a function's name, or the
    compiler's prefix of a static one."""
    at = kernel.find("_Z")
    return kernel[at:] if at >= 0 else kernel.rpartition(".")[2]


def _mark(name: str) -> str:
    """A 64-bit number for a name, which may be long; among a million names, no two are likely to share it."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _version(path: Path) -> tuple[str, int, int]:
    facts = path.stat()
    return str(path), facts.st_size, facts.st_mtime_ns
