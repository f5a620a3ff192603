"""Kernels in the format of FlashInfer Trace and SOL-ExecBench: a solution is a JSON file with sources, an
entry point, and the name of the definition that it solves."""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.base.cause import first_line
from evaluators.records.problem import Kernel, Problem
from evaluators.suites.definitions.files import ROOTS, Definition, definition_named
from evaluators.suites.definitions.reference import constants_of, globals_of, values_of_axes

PYTHON = ("python", "pytorch", "triton", "gluon", "cute_dsl", "cutile", "tilelang", "cudnn_frontend")
"""Languages whose solutions are Python."""
COMPILED = ("cpp", "cuda", "cuda_cpp", "cutlass", "cudnn", "cublas")
"""Languages whose solutions are compiled."""
TORCH, TVM_FFI = "torch", "tvm-ffi"
"""How Python calls a compiled solution."""
HOST, CUDA = (".cpp", ".cc", ".cxx", ".c"), (".cu",)
"""The suffixes of files that are compiled. All others are included by them."""
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*$', re.MULTILINE)
SOLUTION_FILE, MAIN = "solution.json", "main.py"


class BadSolution(ValueError):
    """A solution that cannot be read; the message says why, in one line."""


@dataclass(frozen=True, kw_only=True)
class SolutionFile:
    """A solution with the definition that it solves, and its `source` as a kernel of ours."""

    name: str
    author: str
    definition: Definition
    source: str


def read_solution(path: Path) -> SolutionFile:
    """The solution in a file. Its kernel is a `ModelNew` that calls the entry point. Raises BadSolution and
    OSError."""
    try:
        solution = json.loads(path.read_text(encoding="utf-8"))
        files = {posixpath.normpath(each["path"]): each["content"] for each in solution["sources"]}
        spec, wanted = solution["spec"], solution["definition"]
        if (definition := definition_named(wanted, path)) is None:
            raise BadSolution(f"its definition {wanted} was not found; set {' or '.join(ROOTS.values())}")
        file, _, function = spec["entry_point"].partition("::")
        languages = [each.lower() for each in spec.get("languages") or [spec["language"]]]
        if unknown := next((each for each in languages if each not in (*PYTHON, *COMPILED)), None):
            raise BadSolution(f"it is in {unknown}, which is not supported")
        if languages[0] in PYTHON:
            if [*files] != [posixpath.normpath(file)]:
                raise BadSolution(f"it has {len(files)} files; a solution in Python must have one")
            code = files[posixpath.normpath(file)].rstrip()
        else:
            default = TORCH if "languages" in spec else TVM_FFI
            code = _extension(files, spec, languages, spec.get("binding") or default)
            function = f"solution.{function}"
        read = definition.read()
        # Outputs are arguments unless the solution says that they are returned, as in both formats.
        calls = _call(function, read, fills=spec.get("destination_passing_style", True))
        arguments = ", ".join(read["inputs"])
    except (KeyError, TypeError, AttributeError, StopIteration, json.JSONDecodeError) as error:
        raise BadSolution(f"it is no solution: {type(error).__name__}: {first_line(error)}") from error
    name = str(solution.get("name", path.stem))
    title = f"# The solution {name} of {wanted}.".replace("\n", " ")
    model = f"class ModelNew(nn.Module):\n    def forward(self, {arguments}):\n{calls}"
    return SolutionFile(
        name=name,
        author=str(solution.get("author", "")),
        definition=definition,
        source=f"{code}\n\n\n{title}\nimport torch\nfrom torch import nn\n\n\n{model}\n",
    )


def _call(function: str, definition: Mapping[str, Any], *, fills: bool) -> str:
    """The body of `forward`. `fills`: whether the function fills outputs that it is given."""
    inputs, outputs = definition["inputs"], definition["outputs"]
    if not fills:
        return f"        return {function}({', '.join(inputs)})"
    axes = values_of_axes(definition)
    lines = [f"        {axis} = {value}" for axis, value in constants_of(definition).items()]
    for axis, spec in definition["axes"].items():
        if spec["type"] == "var":
            name = next(name for name, each in inputs.items() if axis in (each["shape"] or ()))
            lines.append(f"        {axis} = {name}.shape[{inputs[name]['shape'].index(axis)}]")
    where = next(name for name, spec in inputs.items() if spec["shape"])
    for name, spec in outputs.items():
        size = ", ".join(axes[each] for each in spec["shape"] or ())
        lines.append(
            f"        {name} = torch.empty([{size}], dtype=torch.{spec['dtype']}, device={where}.device)"
        )
    lines.append(f"        {function}({', '.join([*inputs, *outputs])})")
    return "\n".join([*lines, f"        return {', '.join(outputs)}"])


def _extension(
    files: Mapping[str, str], spec: Mapping[str, Any], languages: Sequence[str], binding: str
) -> str:
    """Python that compiles the files and names the result `solution`. Raises BadSolution."""
    host = [_whole(files, each) for each in files if each.endswith(HOST)]
    cuda = [_whole(files, each) for each in files if each.endswith(CUDA)]
    if not host and not cuda:
        raise BadSolution(f"none of its files ends in {', '.join((*HOST, *CUDA))}")
    if binding == TORCH and not any("PYBIND11_MODULE" in each for each in (*host, *cuda)):
        raise BadSolution(
            "its binding is torch, but no file has PYBIND11_MODULE, which names what Python calls"
        )
    options = spec.get("compile_options") or {}
    arguments: dict[str, Any] = {
        "extra_cflags": options.get("cflags", []),
        "extra_ldflags": options.get("ld_flags", ["-lcuda"] if cuda else []),
    }
    if cuda:
        arguments["extra_cuda_cflags"] = options.get("cuda_cflags", ["-O3", "--use_fast_math"])
    lines = ["import os", "", "from torch.utils.cpp_extension import load_inline"]
    includes = []
    if "cutlass" in languages or any("cutlass" in each.lower() for each in spec.get("dependencies") or ()):
        lines.append('CUTLASS = os.environ.get("CUTLASS_DIR", "/usr/local/cutlass")')
        includes += ['f"{CUTLASS}/include"', 'f"{CUTLASS}/tools/util/include"']
    if binding == TVM_FFI:
        lines[2:2] = ["import tvm_ffi"]
        includes += ["tvm_ffi.libinfo.find_include_path()", "tvm_ffi.libinfo.find_dlpack_include_path()"]
        arguments |= {"is_python_module": False, "no_implicit_headers": True}
    given = [f"{name}={value!r}" for name, value in arguments.items()]
    if binding == TVM_FFI:
        library = "os.path.dirname(tvm_ffi.libinfo.find_libtvm_ffi())"
        given[1] = f'{given[1]} + ["-L" + {library}, "-ltvm_ffi", "-Wl,-rpath," + {library}]'
    given += [f"extra_include_paths=[{', '.join(includes)}]"] * bool(includes)
    lines += ["", f"CPP = [{_literals(host)}]", *([f"CUDA = [{_literals(cuda)}]"] if cuda else [])]
    sources = ["cpp_sources=CPP", *(["cuda_sources=CUDA"] if cuda else [])]
    call = "\n".join(f"    {each}," for each in ('name="solution"', *sources, *given))
    load = f"load_inline(\n{call}\n)"
    return "\n".join([*lines, f"solution = {f'tvm_ffi.load_module({load})' if binding == TVM_FFI else load}"])


def _whole(files: Mapping[str, str], name: str, seen: set[str] | None = None) -> str:
    """A file with the files that it includes in their places, each once."""
    seen = {name} if seen is None else seen

    def included(found: re.Match[str]) -> str:
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[1]))
        for each in (beside, posixpath.normpath(found[1])):
            if each in seen:
                return ""
            if each in files:
                seen.add(each)
                return _whole(files, each, seen)
        return found[0]

    return INCLUDE.sub(included, files[name]).replace("#pragma once", "")


def _literals(texts: Iterable[str]) -> str:
    """The texts as Python, as they stand where Python allows."""
    return ", ".join(
        repr(each) if "'''" in each or each.endswith(("'", "\\")) else f"r'''{each}'''" for each in texts
    )


def solution_of(problem: Problem, kernel: Kernel, *, name: str, description: str) -> dict[str, Any] | None:
    """A kernel as a solution, which returns its outputs; None if the problem was not made from a definition.

    `ModelNew` has no weights there, so that one instance serves all calls. Both formats call such a solution
    Python, also if it compiles CUDA code: SOL-ExecBench refuses the latter.
    """
    if not problem.name.startswith(tuple(f"{suite}/" for suite in ROOTS)):
        return None
    (model,) = (
        each
        for each in ast.parse(problem.source).body
        if isinstance(each, ast.ClassDef) and each.name == "Model"
    )
    forward = next(each for each in model.body if isinstance(each, ast.FunctionDef))
    inputs = ", ".join(each.arg for each in forward.args.args[1:])
    entry = "run"
    while re.search(rf"\b{entry}\b", kernel.source):
        entry += "_"
    calls = (
        "_class, _model = ModelNew, None\n\n\n"
        f"def {entry}({inputs}):\n"
        "    global _model\n"
        "    if _model is None:\n"
        "        _model = _class()\n"
        f"    return _model({inputs})\n"
    )
    is_triton = kernel.language in ("triton", "gluon")
    if problem.name.startswith("solexec/"):
        languages: dict[str, Any] = {"languages": ["triton" if is_triton else "pytorch"]}
        hardware = ["LOCAL"]
    else:
        languages, hardware = {"language": "triton" if is_triton else "python"}, [problem.device]
    return {
        "name": name,
        "definition": globals_of(problem.source)["DEFINITION"],
        "author": "ideatree",
        "description": description,
        "spec": {
            **languages,
            "target_hardware": hardware,
            "entry_point": f"{MAIN}::{entry}",
            "dependencies": ["torch", *(["triton"] if is_triton else [])],
            "destination_passing_style": False,
        },
        "sources": [{"path": MAIN, "content": f"{kernel.source.rstrip()}\n\n\n{calls}"}],
    }
